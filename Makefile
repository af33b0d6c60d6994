# make up      the whole portal on this machine        make test     the tests
# make lint    what CI checks before the tests         make help     the rest
BIN := .venv/bin
PACKAGES := core spawner services hub_config cli widgets bench docs tests

.PHONY: up test test-faults test-gpu lint fmt clean requirements help bench-start bench-proxy bench-trace bench-forecast \
	bench-admission bench-expiries

up: ## Start the portal: PORT= (default 8000), STATE= (default .portal, all that it keeps)
	@requirements/install.sh portal
	@exec $(BIN)/gpu-dev-portal up $(if $(PORT),--port "$(PORT)") $(if $(STATE),--state "$(STATE)")

test: ## Run the tests, but for those of test-faults and test-gpu; ARGS= is passed to pytest
	@requirements/install.sh dev
	@tests/install-browser.sh
	@$(BIN)/python -m pytest -n 2 --dist loadfile --ignore=tests/faults $(ARGS)

test-faults: ## Random people, clocks, nodes and hubs; two controllers; a kill at every point (10 minutes)
	@requirements/install.sh dev
	@$(BIN)/python -m pytest -n 2 --dist load tests/faults $(ARGS)

test-gpu: ## The tests that need an NVIDIA GPU, on a machine that has one
	@requirements/install.sh dev
	@$(BIN)/python -m pytest tests/gpu $(ARGS)

lint: ## Style, mistakes, types
	@requirements/install.sh dev
	@$(BIN)/ruff check $(PACKAGES)
	@$(BIN)/ruff format --check $(PACKAGES)
	@$(BIN)/mypy

fmt: ## Format, and mend what can be mended
	@requirements/install.sh dev
	@$(BIN)/ruff check --fix $(PACKAGES)
	@$(BIN)/ruff format $(PACKAGES)

requirements: ## Renew every pinned version in requirements/*.txt
	@requirements/install.sh dev
	@requirements/renew.sh

bench-start: ## Seconds to the login page and to JupyterLab, beside plain JupyterHub
	@requirements/install.sh dev
	@$(BIN)/python bench/start.py

bench-proxy: ## The in-process proxy beside configurable-http-proxy
	@requirements/install.sh dev
	@$(BIN)/python bench/proxy.py

bench-trace: ## A cluster's trace through four queues: promises, waits, forecasts; PODS= NODES= (csv) LOAD= SEED= GPU_NODES=
	@requirements/install.sh dev
	@$(BIN)/python bench/trace.py $(if $(PODS),--pods "$(PODS)") $(if $(NODES),--nodes "$(NODES)") \
		$(if $(LOAD),--load "$(LOAD)") $(if $(SEED),--seed "$(SEED)") $(if $(GPU_NODES),--gpu-nodes "$(GPU_NODES)")

bench-forecast: ## What a plan costs with 200 nodes and up to 4,000 requests in the queue
	@requirements/install.sh dev
	@$(BIN)/python bench/forecast.py

bench-admission: ## Accepted reservations per second, and how soon freed GPUs are handed on, on both databases
	@requirements/install.sh dev
	@$(BIN)/python bench/admission.py

bench-expiries: ## A thousand reservations that expire in the same minute
	@requirements/install.sh dev
	@$(BIN)/python bench/expiries.py

clean: ## Remove what make made (.venv and caches; never the state folder)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' $(MAKEFILE_LIST)
