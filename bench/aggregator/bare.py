"""The peer of bench.aggregator.serve: a FastAPI handler on uvicorn that reads the body and answers a constant Ack.

python -m bench.aggregator.bare       # prints its address, serves until it is ended
"""

from __future__ import annotations

import sys

from fastapi import FastAPI, Request, Response

from goodput.wire import schema

ACK = schema.encode(schema.Ack(accepted=1))
app = FastAPI()


@app.post("/api/v1/ingest")
async def ingest(request: Request) -> Response:
    await request.body()
    return Response(ACK, media_type=schema.CONTENT_TYPE)


def main() -> int:
    import uvicorn

    from goodput.cli.serve import listening_socket

    listener = listening_socket("127.0.0.1", 0)
    print(f"on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, ws="none", log_level="error", access_log=False, timeout_keep_alive=75)
    uvicorn.Server(config).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
