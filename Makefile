# Everything lives in .venv; nothing is installed outside it but the Debian packages of `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
# With ARGS one of the two parts may have nothing to do, which pytest ends with 5.
NONE_IS_WELL = $(if $(ARGS),|| [ $$? -eq 5 ])

.PHONY: demo test lint bench dashboards picture clean servers

demo: $(VENV)/.demo  ## train a small model here and account for every second of it
	@$(BIN)/goodput demo $(ARGS)

test: $(VENV)/.test servers  ## all tests
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone" $(ARGS) $(NONE_IS_WELL)
	$(BIN)/python -m pytest -m alone $(ARGS) $(NONE_IS_WELL)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(VENV)/.test  ## the budgets, each as a ratio against a named peer
	$(BIN)/python -m bench.phase
	$(BIN)/python -m bench.automatic
	$(BIN)/python -m bench.replay
	$(BIN)/python -m bench.analyze
	$(BIN)/python -m bench.window
	$(BIN)/python -m bench.node

dashboards: $(VENV)/.test  ## write dashboards/generated/*.json, and the Kubernetes objects made of them and of the rules
	$(BIN)/python -m dashboards.generate
	$(BIN)/python deploy/kubernetes/generate.py

picture: $(VENV)/.test  ## docs/page.png: the built-in page of a demo run, by headless Chromium
	$(BIN)/python docs/picture.py docs/page.png

servers:
	./tests/install-servers.sh

clean:
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .ruff_cache src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.so' -delete

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml src/goodput/sdk/_fast.c | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	touch $@

# PyTorch by its exact version first: asked for by a range, pip takes a build with gigabytes of CUDA.
$(VENV)/.test: pyproject.toml src/goodput/sdk/_fast.c | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@ $(VENV)/.demo
