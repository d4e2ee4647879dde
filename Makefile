# `make help` lists the targets. Everything is installed into .venv, but for the Debian packages of `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RENDER := dashboards/render
TORCH := torch==2.13.0
# Tests rewrite their assertions and start hundreds of processes; both read compiled files if they may be written.
unexport PYTHONDONTWRITEBYTECODE
# With ARGS, `make fuzz` may select no test in one of its parts, for which pytest exits with 5.
ALLOW_NO_TESTS = $(if $(ARGS),|| [ $$? -eq 5 ])

.PHONY: help demo test test-python fuzz faults flapping collective-faults healthy-collectives slow-links nccl-plugin kills lint audit lock bench bench-scale rolling replay-alerts probe-limits replay-stories dashboards kubernetes chart packages wheels picture pictures clean servers detection-score

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do \
	    echo "$$text" | fold -s -w 53 | { read -r first; printf '  make %-20s%s\n' "$$name" "$$first"; sed 's/^/                           /'; }; done

demo: $(VENV)/.demo  ## train a small model here and account for every second of it
	@$(BIN)/goodput demo $(ARGS)

test: $(VENV)/.test servers  ## all tests
	$(BIN)/python tests/support/run_suite.py $(ARGS)

test-python:  ## the tests on another version: PYTHON=python3.13, in an environment of its own inside .venv
	$(MAKE) test PYTHON=$(PYTHON) VENV=.venv/$(notdir $(PYTHON)) ARGS="$(ARGS)"

fuzz: $(VENV)/.test servers  ## rules without one clause each and more random cases, then for MINUTES (10) property tests with new examples, and as long again readers under atheris
	$(BIN)/python -m pytest -n 2 -m "mutation or more_seeds" $(ARGS) $(ALLOW_NO_TESTS)
	@end=$$(( $$(date +%s) + 60 * $(or $(MINUTES),10) )); while [ $$(date +%s) -lt $$end ]; do \
	    GOODPUT_TEST_PROFILE=fuzz $(BIN)/python -m pytest -n 2 -m hypothesis $(ARGS) || exit 1; done
	$(if $(ARGS),,PYTHONPATH=tests $(BIN)/python -m support.fuzz.guided .fuzz $$((60 * $(or $(MINUTES),10))))

kills: $(VENV)/.test servers  ## kill the aggregator at KILLS (200) random moments of its load, on each database
	GOODPUT_TEST_KILLS=$(or $(KILLS),200) $(BIN)/python -m pytest -n 2 tests/aggregator/ingest/test_serve_killed.py

collective-faults: $(VENV)/.test  ## broken collectives of real processes over gloo, SEEDS (20) of each (docs/collectives.md)
	COLLECTIVE_FAULT_FIRST=$(or $(FIRST),1) COLLECTIVE_FAULT_SEEDS=$(or $(SEEDS),20) $(BIN)/python -m pytest -q --timeout 3600 tests/frameworks/collectives/test_collective_faults.py

nccl-plugin: $(VENV)/.test  ## the profiler plugin of NCCL under ASan, UBSan and TSan, SEEDS (20) of each version (docs/nccl.md)
	NCCL_PLUGIN_SEEDS=$(or $(SEEDS),20) NCCL_PLUGIN_ROUNDS=100000 $(BIN)/python -m pytest -q tests/nccl/test_plugin_sanitized.py

healthy-collectives: $(VENV)/.test  ## 50 healthy trainings with long evaluations and slow checkpoints get no verdict (docs/collectives.md)
	HEALTHY_FIRST=$(or $(FIRST),1) HEALTHY_RUNS=$(or $(SEEDS),50) $(BIN)/python -m pytest -q --timeout 3600 tests/frameworks/collectives/test_collective_health.py

slow-links: $(VENV)/.test  ## one rank's link is slow, or dead, among real processes in network namespaces, SEEDS (10) of each: that rank is named (docs/collectives.md)
	SLOW_LINK_SEEDS=$(or $(SEEDS),10) $(BIN)/python -m pytest -q --timeout 3600 tests/frameworks/collectives/test_slow_links.py

flapping: $(VENV)/.test  ## GPUs, links, mounts and drivers flap for MINUTES (60) of accelerated time: nothing leaks
	FLAPPING_SECONDS=$$((60 * $(or $(MINUTES),60))) $(BIN)/python -m pytest -q tests/exporters/agent/test_flapping.py

faults: $(VENV)/.test servers  ## faults of processes, disks, networks and clocks: what is lost, and seconds until figures are current (docs/reliability.md)
	@mkdir -p build && rm -f build/faults.jsonl
	GOODPUT_FAULTS=$(CURDIR)/build/faults.jsonl $(BIN)/python -m pytest -n 2 -m "faults or slow_faults" $(ARGS)
	@if [ -e build/faults.jsonl ]; then cat build/faults.jsonl; fi

lint: $(VENV)/.test  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

# What is run in production, resolved anew as `pip install` would today. With --strict what could not be asked fails it.
AUDITED := .[server,postgresql,stacks,hdr,otlp,compare,mcp,stream,top]
audit: | $(VENV)/bin/python  ## known advisories of what the extras install, by pip-audit; asks pypi.org
	$(BIN)/python -m venv $(VENV)/audit && $(VENV)/audit/bin/python -m pip install --quiet pip-audit
	$(BIN)/python -m pip install --quiet --dry-run --ignore-installed --report $(VENV)/audit/report.json '$(AUDITED)'
	$(BIN)/python -c 'import json, sys; found = [one["metadata"] for one in json.load(sys.stdin)["install"]]; \
	    print(*("%(name)s==%(version)s" % one for one in found if one["name"] != "goodput-telemetry"), sep="\n")' \
	    <$(VENV)/audit/report.json >$(VENV)/audit/requirements.txt
	$(VENV)/audit/bin/pip-audit --strict --no-deps --disable-pip -r $(VENV)/audit/requirements.txt

lock: | $(VENV)/bin/python  ## deploy/container/*.lock: versions and hashes of what the images install; ARGS=--upgrade for the newest; asks pypi.org
	$(BIN)/python -m venv $(VENV)/lock && $(VENV)/lock/bin/python -m pip install --quiet uv==0.13.9
	PATH=$(abspath $(VENV))/lock/bin:$$PATH $(BIN)/python deploy/container/lock.py $(ARGS)

bench: $(VENV)/.test  ## the budgets, each as a ratio against a named peer
	$(BIN)/python -m bench.trainer.phase
	$(BIN)/python -m bench.trainer.automatic
	$(BIN)/python -m bench.trainer.collectives
	PYTHONPATH=tests $(BIN)/python -m bench.trainer.nccl_plugin
	$(BIN)/python -m bench.analysis.replay
	$(BIN)/python -m bench.analysis.analyze
	$(BIN)/python -m bench.trainer.window
	PYTHONPATH=tests $(BIN)/python -m bench.node.agent
	$(BIN)/python -m bench.aggregator.serve

detection-score: $(VENV)/.test  ## hidden faults in SEEDS (50) real trainings, and as many without one: docs/detection-score.md; RESULTS=FILE keeps results, to go on later
	$(BIN)/python -W ignore -m bench.detection.score --seeds $(or $(SEEDS),50) --first $(or $(FIRST),1001) $(if $(RESULTS),--results $(RESULTS)) --write docs/detection-score.md

bench-scale: $(VENV)/.test servers  ## several aggregators over a stream against one: cost per rank, added latency (docs/scale.md)
	PYTHONPATH=tests $(BIN)/python -m bench.aggregator.scale $(ARGS)

rolling: $(VENV)/.test servers  ## upgrade a cluster over a stream from the version in OLD, a checkout, to this one and back, while nodes push (docs/scale.md)
	PYTHONPATH=tests $(BIN)/python -m bench.aggregator.rolling $(OLD) $(ARGS)

replay-alerts: $(VENV)/.test servers  ## ten simulated days and one of every fault through the alerts; writes docs/detection.md
	$(BIN)/python -m bench.alert_replay $(ARGS)

replay-stories: $(VENV)/.test  ## the same days and faults, told by `goodput report --story`: none missing, nothing blamed falsely
	$(BIN)/python -m bench.detection.story $(ARGS)

probe-limits: $(VENV)/.test  ## twelve loaders with a planted limit: the knee and the limit that goodput probe finds, 3 min
	PYTHONPATH=tests $(BIN)/python -m bench.analysis.probe_limits

dashboards: $(VENV)/.test  ## write dashboards/generated/*.json and the alerts' links to them
	$(BIN)/python -m dashboards.generate
	$(BIN)/python -m dashboards.alert_links

kubernetes:  ## write the rules as Kubernetes objects, for overlays with the Prometheus operator
	$(PYTHON) deploy/kubernetes/rules.py

# Of a clean checkout: with the same commit, Python and versions of the extra `packages` the bytes are the same.
packages: $(VENV)/.packages  ## dist/: wheel, .deb and .rpm of agent and aggregator, bill of materials (CycloneDX)
	$(BIN)/python deploy/packages/build.py dist

wheels: $(VENV)/.packages  ## dist/wheels/: a wheel for each of PYTHONS (python3.10 python3.11 python3.12), the last for all later ones and aarch64 too
	$(BIN)/python deploy/packages/wheels.py $(or $(PYTHONS),python3.10 python3.11 python3.12)

chart:  ## write the Helm chart to dist/chart/goodput, and the table of its values to docs/helm.md
	$(PYTHON) deploy/helm/chart.py
	$(PYTHON) deploy/helm/values_table.py

picture: $(VENV)/.test  ## docs/page.png: the built-in page of a demo run, by headless Chromium
	$(BIN)/python -m dashboards.render.page_picture docs/page.png

pictures: $(VENV)/.test $(RENDER)/dist/main.js  ## docs/board-*.png: the boards over a simulated cluster, by Grafana's own components (490 MB of npm packages)
	$(BIN)/python -m dashboards.render.pictures docs

$(RENDER)/dist/main.js: $(RENDER)/package-lock.json $(RENDER)/build.mjs $(wildcard $(RENDER)/page/*.ts* $(RENDER)/page/panels/*.ts*)
	cd $(RENDER) && npm ci && npm run build

servers:
	./tests/install-servers.sh

clean:
	rm -rf $(VENV) build dist .fuzz .pytest_cache .hypothesis .ruff_cache src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.so' -delete

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

COMPILED := $(wildcard src/goodput/_core/*.[ch] src/goodput/sdk/recorder/*.[ch] src/goodput/wire/*.[ch] src/goodput/nccl/*.[ch])

$(VENV)/.demo: pyproject.toml $(COMPILED) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	touch $@

$(VENV)/.packages: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[packages]'
	touch $@

# PyTorch by its exact version first: asked for by a range, pip takes a build with gigabytes of CUDA.
$(VENV)/.test: pyproject.toml $(COMPILED) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@ $(VENV)/.demo
