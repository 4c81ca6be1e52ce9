# Kvasir — `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := all
# Every processor, unless the caller said how many.
ifeq (,$(findstring jobserver,$(MAKEFLAGS)))
MAKEFLAGS += -j$(shell nproc)
endif
.SECONDARY:
B ?= build
ifeq ($(origin CC),default)
CC := gcc
endif
PREFIX ?= /usr/local
DESTDIR ?=
V ?=
Q := $(if $(V),,@)

PKGS     := libmicrohttpd jansson sqlite3 lua5.4 gnutls libcurl zlib
WARN     := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef -Wno-missing-field-initializers
WERROR   := $(if $(CI),-Werror,)
OPT      ?= -O2
SAN      ?=
CFLAGS    = -std=c17 -D_GNU_SOURCE $(OPT) -g -ffp-contract=off -fno-math-errno -fno-strict-aliasing -pthread $(WARN) $(WERROR) $(SAN)
CPPFLAGS := -I. -I$(B)/gen
PKG_CF    = $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LD    = $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lm
GNUTLS_LD = $(shell pkg-config --libs gnutls 2>/dev/null)
LDFLAGS  := -pthread $(SAN)

# ---------------------------------------------------------------- CUDA (used when nvcc is found, and the g++ it needs)
NVCC := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc 2>/dev/null) $(wildcard $(B)/cuda/bin/nvcc build/cuda/bin/nvcc))
ifneq ($(and $(NVCC),$(shell command -v g++ 2>/dev/null)),)
CUDA_ROOT := $(patsubst %/bin/nvcc,%,$(NVCC))
CUDA_SRC  := $(wildcard kernels/cuda/*.cu)
CUDA_OBJ  := $(CUDA_SRC:%.cu=$(B)/%.o)
CUDA_LD   := -L$(CUDA_ROOT)/lib64 -L$(CUDA_ROOT)/lib -lcudart_static -ldl -lrt -lstdc++
CPPFLAGS  += -DKV_CUDA=1
endif

# ---------------------------------------------------------------- sources
KERNEL_SRC  := $(wildcard kernels/*.c kernels/scalar/*.c) $(if $(filter x86_64,$(shell uname -m)),$(wildcard kernels/x86/*.c))
RUNTIME_SRC := $(wildcard runtime/*.c runtime/*/*.c)
CONTROL_SRC := $(wildcard controller/*.c controller/*/*.c)
CONSOLE_SRC := $(wildcard console/*.c console/*/*.c)
UNIT_SRC    := $(wildcard tests/unit/*.c tests/unit/*/*.c)
BENCH_SRC   := $(wildcard bench/*.c)
BENCH_BIN   := $(BENCH_SRC:%.c=$(B)/%)
FUZZ_SRC    := $(wildcard tests/fuzz/*.c)
obj = $(patsubst %.c,$(B)/%.o,$(1))
LIB_OBJ := $(call obj,$(KERNEL_SRC) $(RUNTIME_SRC)) $(CUDA_OBJ)
CONTROL_LIB_OBJ := $(call obj,$(filter-out controller/main.c,$(CONTROL_SRC)))
CONSOLE_LIB_OBJ := $(call obj,$(filter-out console/main.c,$(CONSOLE_SRC)))

WEB_SRC := $(shell find web/src -type f 2>/dev/null) $(wildcard web/*.json web/*.mjs) controller/verbs.def controller/metrics.def controller/drills.def runtime/status.def
EMBED   := $(wildcard migrations/*.sql policies/*.lua) runtime/evaluate/prose.txt

.PHONY: all
all: $(B)/kvasird $(B)/kvasir ## build kvasird and kvasir into build/ (CUDA when nvcc is found)

$(B)/kernels/x86/avx2%.o: ARCHFLAGS := -mavx2 -mfma -mf16c
$(B)/kernels/x86/avx512%.o: ARCHFLAGS := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c
# Sanitized builds set OPT on the command line. At -O2 their checks in unrolled tiles keep the compiler busy for many minutes and a gigabyte.
$(B)/kernels/%.o: override OPT := $(if $(SAN),$(OPT),-O3)

# nvcc as a prerequisite: what was built before it came does not know that CUDA is there.
$(B)/%.o: %.c $(B)/.deps-ok $(NVCC)
	@mkdir -p $(@D)
	@echo "  CC   $<"
	$(Q)$(CC) $(CPPFLAGS) $(PKG_CF) $(CFLAGS) $(ARCHFLAGS) -MMD -MP -c $< -o $@

$(B)/%.o: %.cu
	@mkdir -p $(@D)
	@echo "  NVCC $<"
	$(Q)$(NVCC) -std=c++17 -O2 -I. -DKV_CUDA=1 --fmad=false -Wno-deprecated-gpu-targets -MMD -MP -c $< -o $@

$(B)/libkvasir.a: $(LIB_OBJ)
	@echo "  AR   $@"
	$(Q)rm -f $@ && ar rcs $@ $(LIB_OBJ)

# The controller without its main function: kvasird is made of it, the command line takes its policy checks from it.
$(B)/libcontroller.a: $(CONTROL_LIB_OBJ)
	@echo "  AR   $@"
	$(Q)rm -f $@ && ar rcs $@ $(CONTROL_LIB_OBJ)

# ---------------------------------------------------------------- embedded files
$(B)/web/.built: $(WEB_SRC) | $(B)/.npm-ok
	@mkdir -p $(B)/web
	@echo "  WEB  $(B)/web"
	$(Q)cd web && node build.mjs $(abspath $(B))/web
	@touch $@

$(B)/.npm-ok: web/package-lock.json web/package.json
	@mkdir -p $(B)
	@echo "  NPM  web"
	$(Q)cd web && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
	@touch $@

$(B)/gen/embedded.S: tools/embed.sh $(EMBED) $(B)/web/.built
	@mkdir -p $(@D)
	@echo "  EMB  $@"
	$(Q)tools/embed.sh $(B)/web $(EMBED) > $@

$(B)/gen/embedded.o: $(B)/gen/embedded.S
	$(Q)$(CC) -c $< -o $@

$(B)/kvasird: $(B)/controller/main.o $(B)/libcontroller.a $(B)/gen/embedded.o $(B)/libkvasir.a
	@echo "  LD   $@"
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(PKG_LD) $(CUDA_LD)

$(B)/kvasir: $(B)/console/main.o $(CONSOLE_LIB_OBJ) $(B)/libcontroller.a $(B)/gen/embedded.o $(B)/libkvasir.a
	@echo "  LD   $@"
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(PKG_LD) -lncursesw -ltinfo $(CUDA_LD)

# ---------------------------------------------------------------- tests
$(B)/gen/suites.def: $(UNIT_SRC)
	@mkdir -p $(@D)
	@for f in $(basename $(notdir $(UNIT_SRC))); do case $$f in test_*) echo "SUITE($${f#test_})";; esac; done > $@.new; cmp -s $@.new $@ || cp $@.new $@

$(B)/tests/unit/main.o: $(B)/gen/suites.def

# What test_rollback_race.c leads through itself.
$(B)/tests/unit/unit: WRAPPED := begin unchanged end fence
$(B)/tests/unit/unit: $(call obj,$(UNIT_SRC)) $(CONSOLE_LIB_OBJ) $(B)/libcontroller.a $(B)/gen/embedded.o $(B)/libkvasir.a
	@mkdir -p $(@D)
	@echo "  LD   $@"
	$(Q)$(CC) $(LDFLAGS) $(WRAPPED:%=-Wl,--wrap=kv_publication_%) -Wl,--wrap=clock_gettime -Wl,--wrap=kv_selection_create $^ -o $@ $(PKG_LD) -lncursesw -ltinfo $(shell pkg-config --libs check) $(CUDA_LD)

$(B)/bench/trust $(B)/bench/remote: $(B)/bench/%: $(B)/bench/%.o $(B)/libcontroller.a $(B)/gen/embedded.o $(B)/libkvasir.a
	@echo "  LD   $@"
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(PKG_LD) $(CUDA_LD)

$(B)/bench/%: $(B)/bench/%.o $(B)/libkvasir.a
	@echo "  LD   $@"
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(PKG_LD) $(CUDA_LD)

$(B)/fuzz/%: $(B)/tests/fuzz/%.o $(B)/libcontroller.a $(B)/gen/embedded.o $(B)/libkvasir.a
	@mkdir -p $(@D)
	@echo "  LD   $@"
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(PKG_LD) $(CUDA_LD)

.PHONY: unit
unit: $(B)/tests/unit/unit ## build and run the unit tests only
	$(Q)$(B)/tests/unit/unit

$(B)/.venv-ok: tests/requirements.txt
	@mkdir -p $(B)
	@echo "  VENV $(B)/venv"
	$(Q)python3 -m venv $(B)/venv && $(B)/venv/bin/pip install -q --disable-pip-version-check -r tests/requirements.txt
	@touch $@

$(B)/.web-tests-ok: tests/web/package-lock.json tests/web/package.json
	@mkdir -p $(B)
	@echo "  NPM  tests/web"
	$(Q)cd tests/web && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
	@touch $@

.PHONY: check
check: deps ## set up, build and pass every test; ends with "N passed, N failed"
	$(Q)$(MAKE) --no-print-directory all $(BENCH_BIN) $(B)/tests/unit/unit $(B)/.venv-ok $(B)/.web-tests-ok $(addprefix $(B)/fuzz/,$(basename $(notdir $(FUZZ_SRC))))
	$(Q)tools/smollm2.sh > /dev/null || echo "SmolLM2 could not be fetched; its tests fail unless KVASIR_TEST_MODEL names its file"
	$(Q)$(B)/venv/bin/python tests/run.py --build $(B)

.PHONY: soak
soak: deps ## the long forms: random operations, 1,000 kills, 100,000 rollbacks, wrong rows hunted, consoles for half an hour each
	$(Q)$(MAKE) --no-print-directory all $(B)/tests/unit/unit $(B)/.venv-ok $(B)/.web-tests-ok
	$(Q)$(B)/venv/bin/python tests/run.py --build $(B) --soak

.PHONY: asan tsan
asan: deps ## unit and integration tests under AddressSanitizer and UBSan
	$(Q)$(MAKE) --no-print-directory B=build/asan OPT="-O1" SAN="-fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined" sanitized
tsan: deps ## unit and integration tests under ThreadSanitizer
	$(Q)$(MAKE) --no-print-directory B=build/tsan OPT="-O1" SAN="-fsanitize=thread" sanitized
.PHONY: sanitized
sanitized: all $(B)/tests/unit/unit $(B)/.venv-ok
	$(Q)$(B)/venv/bin/python tests/run.py --build $(B) --sanitized

.PHONY: bench bench-peer
bench: all $(BENCH_BIN) ## measure; writes build/bench.json with ratios of one run
	$(Q)python3 bench/run.py --build $(B)
bench-peer: all $(BENCH_BIN) ## the same beside the peer, fetched by npm, in one run
	$(Q)python3 bench/run.py --build $(B) --peer

.PHONY: fuzz
fuzz: $(addprefix $(B)/fuzz/,$(basename $(notdir $(FUZZ_SRC)))) ## fuzz every parser (long form)
	$(Q)for f in $^; do echo "== $$f"; $$f --cases 100000 || exit 1; done

# ---------------------------------------------------------------- set-up, run, install
.PHONY: deps
deps: ## install what is missing (Debian packages by name; root is asked for only when something is)
	$(Q)tools/deps.sh $(B)
$(B)/.deps-ok:
	$(Q)tools/deps.sh $(B)

.PHONY: cuda-toolkit
cuda-toolkit: ## fetch nvcc and its runtime from the Python index into build/cuda
	$(Q)tools/cuda-toolkit.sh build

.PHONY: run
run: deps ## set up, build and start the main job: demo model, trace, three rollouts, both consoles
	$(Q)$(MAKE) --no-print-directory all
	$(Q)exec $(B)/kvasird --demo

.PHONY: install
install: all ## install into $(DESTDIR)$(PREFIX)
	install -D -m 755 $(B)/kvasird $(DESTDIR)$(PREFIX)/bin/kvasird
	install -D -m 755 $(B)/kvasir $(DESTDIR)$(PREFIX)/bin/kvasir
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/kvasir/policies policies/*.lua
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/kvasir/policies/test policies/test/*.lua
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/kvasir/models models/*.gguf
	install -D -m 644 packaging/systemd/kvasird.service $(DESTDIR)$(PREFIX)/lib/systemd/system/kvasird.service
	install -D -m 644 packaging/prometheus/kvasir.rules.yml $(DESTDIR)$(PREFIX)/share/kvasir/prometheus/kvasir.rules.yml
	install -D -m 644 packaging/grafana/kvasir.json $(DESTDIR)$(PREFIX)/share/kvasir/grafana/kvasir.json
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/man/man1
	$(B)/kvasir completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/kvasir
	$(B)/kvasir completion man > $(DESTDIR)$(PREFIX)/share/man/man1/kvasir.1
	install -D -m 644 README.md $(DESTDIR)$(PREFIX)/share/doc/kvasir/README.md

.PHONY: pictures
pictures: all $(B)/.web-tests-ok ## remake the README's pictures of both consoles
	$(Q)tools/pictures.sh $(B)

.PHONY: clean
clean: ## remove build/
	rm -rf build

.PHONY: help
help: ## this list
	@grep -hE '^[a-z][a-z -]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z -]+):.*## /\1\t/' | sort | expand -t 16

-include $(shell find $(B) -name '*.d' 2>/dev/null)
