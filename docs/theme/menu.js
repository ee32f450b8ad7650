// The names of a namespace beside each of its pages.  A menu within each page would double the
// size of the site; docs/reference_pages writes NAMES before this text.

const place = location.pathname.match(/^(.*\/)reference\/(flow[.\w]*)\/(?:index\.html)?$/);
const owner = place && !(place[2] in NAMES) && place[2].replace(/\.\w+$/, "");
const space = owner in NAMES ? owner : "";
const bar = document.querySelector(".md-sidebar--primary .md-sidebar__inner");
if (space && bar) {
  const item = (text, page) => {
    const link = document.createElement("a");
    link.className = "md-nav__link";
    link.href = `${place[1]}reference/${page}/`;
    link.textContent = text;
    if (page === place[2]) {
      link.classList.add("md-nav__link--active");
      link.setAttribute("aria-current", "page");
    }
    const made = document.createElement("li");
    made.className = "md-nav__item";
    made.append(link);
    return made;
  };
  const list = document.createElement("ul");
  list.className = "md-nav__list";
  list.append(item("All names", "."), item(space, space),
    ...NAMES[space].map((name) => item(name, `${space}.${name}`)));
  const menu = document.createElement("nav");
  menu.className = "md-nav md-nav--primary reference-menu";
  menu.setAttribute("aria-label", space);
  menu.append(list);
  bar.prepend(menu);
  const [active] = menu.getElementsByClassName("md-nav__link--active");
  bar.parentElement.scrollTop = active.offsetTop - bar.parentElement.clientHeight / 2;
  for (const tab of document.querySelectorAll(".md-tabs__item"))
    if (tab.textContent.trim() === "Reference") tab.classList.add("md-tabs__item--active");
}
