"""Signing in and out with a real browser, by keyboard: what a person sees, and what the browser was given to keep."""

import time

import pytest
from support.account.account_history import Process
from support.aggregator.page_browser import CHROMIUM
from support.aggregator.page_cdp import Browser
from support.aggregator.reports import body_of, rank_report
from support.aggregator.serve_process import serving

from goodput.access import token_file
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import make
from goodput.aggregator.api.app import create_app
from goodput.aggregator.http.authentication import RequestAuthenticator

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


def test_a_person_signs_in_looks_and_signs_out(tmp_path):
    made = {"ada": make("ada", "read", tenant="vision"), "nodes": make("nodes", "ingest")}
    with token_file.changing(tmp_path / "tokens.json") as tokens:
        tokens += [token for _, token in made.values()]
    app = create_app(
        f"sqlite:///{tmp_path}/ledger.db",
        authenticator=RequestAuthenticator(TokenCache(tmp_path / "tokens.json")),
    )
    with serving(app) as client, Browser(tmp_path) as browser:
        ranks = [
            rank_report(Process(0, 1, time.time() - 9).steps(3, forward=1), run) for run in ("vision/a", "b")
        ]
        headers = {"Authorization": f"Bearer {made['nodes'][0]}"}
        assert client.post("/api/v1/ingest", content=body_of(*ranks), headers=headers).status_code == 200

        page = browser.open(f"{client.base_url}/", width=390)
        page.until("location.pathname === '/login' && document.activeElement.id === 'token'")
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), "it fits a phone"
        page.call("Input.insertText", text=made["nodes"][0])
        page.key("Enter")
        page.until("document.getElementById('problem')?.textContent.includes('does not read runs')")
        page.until("document.activeElement.id === 'token'")
        page.call("Input.insertText", text=made["ada"][0])
        page.key("Enter")
        # Of the two runs the one that she may see, and as it is the only one, the run itself.
        page.until("decodeURIComponent(location.hash) === '#run=vision/a'")
        page.until("document.getElementById('all').textContent.includes('(1)')")
        assert page.run("document.cookie + Object.values(localStorage).join()") in ("", "auto")
        page.until("!document.getElementById('signout').hidden")
        page.run("document.querySelector('#signout button').focus()")
        page.key("Enter")
        page.until("location.pathname === '/login'")
        back = browser.open(f"{client.base_url}/")
        back.until("location.pathname === '/login'")
