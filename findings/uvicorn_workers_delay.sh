#!/usr/bin/env bash
# uvicorn 0.54.0 on CPython 3.11, Linux: with `--workers 2`, each answer after the first few on a
# kept connection takes 40 ms longer than with one worker.  With several workers, the listening
# socket comes from `Config.bind_socket`, which makes it without a protocol number.
# asyncio sets TCP_NODELAY only on sockets whose `proto` is IPPROTO_TCP, so that Nagle's algorithm
# stays on, and the body of an answer, a write of its own, waits for the client's delayed
# acknowledgment of the headers.  A server of models that binds its own socket has to pass the
# protocol that `getaddrinfo` returns.
#
# Seen on 2026-11-30, x86-64, Linux 6.18, median of 40 requests:
#   1 worker:  0.5 ms
#   2 workers: 44.1 ms
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null || true; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q uvicorn==0.54.0 h11==0.16.0
cd "$folder"

cat > application.py <<'END'
async def application(scope, receive, send):
    while scope["type"] == "lifespan":
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return
    await receive()
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})
END

cat > client.py <<'END'
import http.client, statistics, sys, time

end = time.monotonic() + 60
while True:
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
    try:
        connection.connect()
        break
    except ConnectionRefusedError:
        if time.monotonic() > end:
            raise
        time.sleep(0.1)
times = []
for _ in range(40):
    started = time.perf_counter()
    connection.request("GET", "/")
    connection.getresponse().read()
    times.append(1e3 * (time.perf_counter() - started))
print(f"{statistics.median(times):.1f}")
END

port=$(venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
for workers in 1 2; do
    venv/bin/uvicorn application:application --port "$port" --workers "$workers" --log-level error &
    venv/bin/python client.py "$port" > "$workers"
    kill %+ && wait %+ || true
    echo "$workers workers: $(cat "$workers") ms"
done
venv/bin/python -c "assert float(open('1').read()) < 20 < 35 < float(open('2').read())"
echo "as described"
