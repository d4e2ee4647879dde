"""Declares runs over whose pods were deleted or have completed, so that their down time ends with their allocation.

Lists the pods of its namespaces with the label `goodput-run`, whose value is the run's name, and posts to the aggregator's `/end` as
`goodput end` does: GRACE_SECONDS after the last of a run's pods has gone, `cancelled`, or `failed` if one had failed; or
`finished` once all of them succeeded. A run with failed pods that are still there is left alone, since its job may start
others. Pods that went while this program did not run are not known to it; the aggregator
takes such a run for abandoned after a day.

In: GOODPUT_NAMESPACES, names with commas between them, in each of which the pod's account may list pods;
GOODPUT_SELECTOR, further labels that the pods must have, as for `kubectl get --selector`; GOODPUT_AGGREGATOR,
GOODPUT_TOKEN_FILE (scope ingest), GOODPUT_CA_FILE, as `goodput node` has them.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from goodput_exporters.push.client import AggregatorClient
from goodput_exporters.push.credentials import Credentials, Unreachable

LABEL = "goodput-run"
EVERY_SECONDS, GRACE_SECONDS = 15.0, 60.0
# A run that the aggregator does not accept the end of, or that does not reach it, is given up after so long.
RETRY_SECONDS = 6 * 3600.0
TIMEOUT_SECONDS, PAGE_PODS, RUNS_MAX = 20.0, 500, 10_000
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
log = logging.getLogger("goodput.ended-jobs")


class Pod(NamedTuple):
    """A pod of a run. `over` is when its containers ended, in unix seconds, 0 if that is not known."""

    run: str
    namespace: str
    phase: str
    over: float

    @property
    def is_active(self) -> bool:
        """One that is being deleted is active until it is gone, and so is one whose node is lost."""
        return self.phase not in ("Succeeded", "Failed")


@dataclass
class Run:
    """What is known of a run: `gone` is when the last of its pods ended or went, 0 while one is active."""

    namespaces: set[str] = field(default_factory=set)  # in which it has or had pods
    has_failed: bool = False
    has_ended: bool = False  # and the aggregator knows
    gone: float = 0.0
    first_try: float = 0.0  # when it was found to be over


@dataclass
class PodLists:
    """Where pods are listed: the API's address, the folder of the pod's account, namespaces, a selector of labels."""

    api: str
    account: Path
    namespaces: list[str]
    selector: str = ""

    def read(self) -> tuple[list[Pod], set[str]]:
        """(the pods of runs, the namespaces that could not be listed)."""
        listed, unread = list[Pod](), set[str]()
        for namespace in self.namespaces:
            try:
                listed += self._pods(namespace)
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("pods of namespace %s cannot be listed: %s", namespace, error)
                unread.add(namespace)
        return listed, unread

    def _pods(self, namespace: str) -> list[Pod]:
        """Raises OSError, ValueError, KeyError or TypeError if the list is not whole."""
        ca_file = str(self.account / "ca.crt")
        context = ssl.create_default_context(cafile=ca_file) if self.api.startswith("https:") else None
        labels = ",".join(filter(None, (LABEL, self.selector)))
        found, query = [], {"labelSelector": labels, "limit": PAGE_PODS}
        url = f"{self.api}/api/v1/namespaces/{quote(namespace, safe='')}/pods"
        while True:
            # Read each time: the kubelet replaces it.
            headers = {
                "Authorization": f"Bearer {(self.account / 'token').read_text().strip()}",
                "Accept": "application/json",
            }
            request = Request(f"{url}?{urlencode(query)}", headers=headers)
            with urlopen(request, timeout=TIMEOUT_SECONDS, context=context) as answer:
                page = json.load(answer)
            if page["kind"] != "PodList":
                raise ValueError(f"no list of pods: {page['kind']}")
            found += [pod_of(item, namespace) for item in page["items"] or []]
            following = page["metadata"].get("continue")
            if not following:
                return found
            query["continue"] = following


def pod_of(item: dict, namespace: str) -> Pod:
    status = item.get("status", {})
    states = [one["state"] for one in status.get("containerStatuses") or []]
    ends = [at for state in states if (at := state.get("terminated", {}).get("finishedAt"))]
    over = max((datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp() for at in ends), default=0.0)
    return Pod(item["metadata"]["labels"][LABEL], namespace, status.get("phase", "Unknown"), over)


class EndedJobs:
    """The runs whose pods were seen."""

    def __init__(self):
        self.runs: dict[str, Run] = {}

    def update(self, listed: list[Pod], unread: set[str], now: float) -> dict[str, tuple[str, float]]:
        """Take a list of the pods at `now`; returns the runs to end, by name the reason and when they were over.

        Of a run in a namespace that could not be read, nothing is concluded.
        """
        by_run: dict[str, list[Pod]] = {}
        for pod in listed:
            by_run.setdefault(pod.run, []).append(pod)
        for name in by_run:
            if name in self.runs or len(self.runs) < RUNS_MAX:
                self.runs.setdefault(name, Run())
            else:
                log.error("run %s: over %d runs have pods; its end is not declared", name, RUNS_MAX)
        due = {}
        for name, run in list(self.runs.items()):
            own = by_run.get(name, [])
            run.namespaces.update(pod.namespace for pod in own)
            if run.namespaces & unread:
                continue
            reason = _reason(run, own, now)
            run.first_try = (run.first_try or now) if reason else 0.0
            if reason and not run.has_ended and now - run.first_try > RETRY_SECONDS:
                log.error("run %s: giving up on its end", name)
                run.has_ended = True
            elif reason and not run.has_ended:
                due[name] = (reason, run.gone)
            if run.has_ended and not own:
                del self.runs[name]
        return due


def _reason(run: Run, own: list[Pod], now: float) -> str:
    """Note the pods of a run; why it is over, '' while it is not."""
    if any(pod.is_active for pod in own):
        run.has_failed, run.has_ended, run.gone = False, False, 0.0
        return ""
    run.gone = run.gone or max((pod.over for pod in own), default=0.0) or now
    run.has_failed = run.has_failed or any(pod.phase == "Failed" for pod in own)
    if own:
        return "" if run.has_failed else "finished"
    # Before, the job may be about to replace them, as after an eviction.
    if now - run.gone < GRACE_SECONDS:
        return ""
    return "failed" if run.has_failed else "cancelled"


def end(client: AggregatorClient, name: str, reason: str, at: float) -> bool:
    """Declare a run over; False if that has to be tried again."""
    body = json.dumps({"reason": reason, "at": at}).encode()
    try:
        answer = client.post(
            f"/api/v1/runs/{quote(name, safe='')}/end", body, "application/json", TIMEOUT_SECONDS
        )
    except Unreachable as error:
        log.warning("run %s: %s", name, client.explain(error))
        return False
    log.info("run %s, %s: HTTP %d %s", name, reason, answer.status, answer.text)
    # 404: it never reported. 409: ranks are alive as last reported, and their agents are about to know better.
    return answer.status in (200, 404)


def poll(lists: PodLists, client: AggregatorClient, jobs: EndedJobs, now: float) -> None:
    """List the pods, and declare what is over."""
    listed, unread = lists.read()
    for name, (reason, at) in jobs.update(listed, unread, now).items():
        jobs.runs[name].has_ended = end(client, name, reason, at)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    namespaces = [one.strip() for one in os.environ.get("GOODPUT_NAMESPACES", "").split(",") if one.strip()]
    if not namespaces:
        raise SystemExit(
            "GOODPUT_NAMESPACES names no namespace: set it to those of the jobs, with commas between"
        )
    # As the kubelet sets them; an IPv6 address needs brackets.
    host, port = (
        os.environ.get("KUBERNETES_SERVICE_HOST", ""),
        os.environ.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    api = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    account = Path(os.environ.get("KUBERNETES_ACCOUNT") or ACCOUNT)
    lists = PodLists(api, account, namespaces, os.environ.get("GOODPUT_SELECTOR", ""))
    files = (os.environ.get(name) or None for name in ("GOODPUT_TOKEN_FILE", "GOODPUT_CA_FILE"))
    client, jobs = AggregatorClient(os.environ["GOODPUT_AGGREGATOR"], Credentials(*files)), EndedJobs()
    while True:
        poll(lists, client, jobs, time.time())
        time.sleep(EVERY_SECONDS)


if __name__ == "__main__":
    main()
