"""One browser per file of tests, and tabs in which no script may fail."""

import pytest
from support.browser import chromium, open_page


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def tab(browser):
    """Opens pages, which are closed at the end."""
    pages = []

    def opened(address: str, **options):
        pages.append(open_page(browser, address, **options))
        return pages[-1]

    yield opened
    errors = [error for page in pages for error in page.errors]
    for page in pages:
        page.context.close()
    assert errors == []
