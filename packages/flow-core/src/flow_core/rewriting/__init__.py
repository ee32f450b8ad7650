"""What passes of several packages have in common: an editor of graphs, and layouts."""
