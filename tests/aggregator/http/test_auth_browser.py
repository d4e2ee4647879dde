"""Signing in and out with a browser, by keyboard, and what the browser stores."""

import time

from support.account.account_history import Process
from support.aggregator.reports import body_of, rank_report
from support.aggregator.serve_process import serving
from support.browser import chromium, needs_chromium, open_page, until

from goodput.access import token_file
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import make
from goodput.aggregator.api.app import create_app
from goodput.aggregator.http.authentication import RequestAuthenticator

pytestmark = needs_chromium


def test_browser_signs_in_and_out(tmp_path):
    made = {"ada": make("ada", "read", tenant="vision"), "nodes": make("nodes", "ingest")}
    with token_file.changing(tmp_path / "tokens.json") as tokens:
        tokens += [token for _, token in made.values()]
    app = create_app(
        f"sqlite:///{tmp_path}/ledger.db",
        authenticator=RequestAuthenticator(TokenCache(tmp_path / "tokens.json")),
    )
    with serving(app) as client, chromium() as browser:
        ranks = [
            rank_report(Process(0, 1, time.time() - 9).steps(3, forward=1), run) for run in ("vision/a", "b")
        ]
        headers = {"Authorization": f"Bearer {made['nodes'][0]}"}
        assert client.post("/api/v1/ingest", content=body_of(*ranks), headers=headers).status_code == 200

        page = open_page(browser, f"{client.base_url}/", width=390)
        until(page, "location.pathname === '/login' && document.activeElement.id === 'token'")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it fits a phone"
        page.keyboard.insert_text(made["nodes"][0])
        page.keyboard.press("Enter")
        until(page, "document.getElementById('problem')?.textContent.includes('does not read runs')")
        until(page, "document.activeElement.id === 'token'")
        page.keyboard.insert_text(made["ada"][0])
        page.keyboard.press("Enter")
        # Of the two runs the one that she may see, and as it is the only one, the run itself.
        until(page, "decodeURIComponent(location.hash) === '#run=vision/a'")
        until(page, "document.getElementById('all').textContent.includes('(1)')")
        assert page.evaluate("document.cookie + Object.values(localStorage).join()") in ("", "auto")
        until(page, "!document.getElementById('signout').hidden")
        page.evaluate("document.querySelector('#signout button').focus()")
        page.keyboard.press("Enter")
        until(page, "location.pathname === '/login'")
        back = page.context.new_page()
        back.goto(f"{client.base_url}/")
        until(back, "location.pathname === '/login'")
