# SPDX-License-Identifier: Apache-2.0
# kvd - one Makefile, non-recursive. `make help` lists what it can do.
#
# The -I flags of each folder are the layer rules of docs/architecture.md: a folder that includes
# what it may not does not compile. `make lint` proves the rest.

BUILD   ?= build
ifeq ($(origin CC),default)
CC      := gcc
endif
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
DESTDIR ?=
SAN     ?=
FUZZ    ?=
COV     ?=
V       ?= 0

VERSION := 0.1.0
SONAME  := libkv.so.0

Q := $(if $(filter 1,$(V)),,@)
say = $(if $(filter 1,$(V)),,@printf '  %-7s %s\n' '$(1)' '$(2)')

WARN := -Wall -Wextra -Werror -Wshadow -Wmissing-prototypes -Wstrict-prototypes -Wundef \
        -Wpointer-arith -Wwrite-strings -Wvla
OPT  ?= -O2
CFLAGS  ?= -g
BASE := -std=gnu11 -D_GNU_SOURCE $(OPT) $(CFLAGS) $(WARN) -fPIC -fvisibility=hidden \
        -fno-strict-aliasing -fno-common -fstack-protector-strong -DKV_VERSION='"$(VERSION)"' \
        $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer) \
        $(if $(FUZZ),-fsanitize=fuzzer-no-link) \
        $(if $(filter thread,$(SAN)),$(if $(findstring gcc,$(CC)),-Wno-tsan)) \
        $(if $(COV),--coverage)
LDBASE := $(LDFLAGS) -pthread $(if $(SAN),-fsanitize=$(SAN)) $(if $(COV),--coverage)

all: $(BUILD)/kvd $(BUILD)/kvctl $(BUILD)/kvgen $(BUILD)/kvbench \
     $(BUILD)/kvreplay \
     $(BUILD)/libkv.so $(BUILD)/libkv.a
.PHONY: all

# ---- modules: name, sources, who it may include -----------------------------------------------

module_objs = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
ALL_OBJS :=

# $(call module,name,sources,includes): defines name_OBJS and $(BUILD)/lib/name.a
define module
$(1)_OBJS := $(call module_objs,$(2))
$$($(1)_OBJS): INCS := $(3)
$(BUILD)/lib/$(1).a: $$($(1)_OBJS)
ALL_OBJS += $$($(1)_OBJS)
endef

MM_SRCS      := $(wildcard kvd/mm/*.c)
IO_SRCS      := $(wildcard kvd/io/*.c)
SRV_SRCS     := $(wildcard kvd/srv/*.c)
KERN_SRCS    := $(wildcard kernels/*.c kernels/ref/*.c kernels/host/*.c)
LIBKV_SRCS   := $(wildcard libkv/*.c)
EMBED_SRCS   := libkv/embed.c
COMMON_SRCS  := $(wildcard tools/common/*.c)

$(eval $(call module,mm,$(MM_SRCS),-Ikvd/mm))
$(eval $(call module,io,$(IO_SRCS),-Ikvd))
$(eval $(call module,srv,$(SRV_SRCS),-Ikvd -Iipc))
$(eval $(call module,kernels,$(KERN_SRCS),-Ikernels))
$(eval $(call module,libkv-main,$(filter-out $(EMBED_SRCS),$(LIBKV_SRCS)),-Ilibkv -Ilibkv/include -Iipc -Ikernels))
$(eval $(call module,libkv-embed,$(EMBED_SRCS),-Ilibkv -Ilibkv/include -Iipc -Ikernels -Ikvd))
$(eval $(call module,main,kvd/main.c,-Ikvd -Iipc))
$(eval $(call module,common,$(COMMON_SRCS),-Itools/common -Ilibkv/include -Iipc))
$(eval $(call module,kvctl,$(wildcard tools/kvctl/*.c),-Itools/common -Ilibkv/include -Iipc))
$(eval $(call module,kvgen,$(wildcard tools/kvgen/*.c),-Itools/common -Ilibkv/include))
$(eval $(call module,kvbench,$(wildcard tools/kvbench/*.c),-Itools/common -Ilibkv/include -Iipc -Ikvd/mm -Ikernels))

$(eval $(call module,kvreplay,$(wildcard tools/kvreplay/*.c),-Itools/common -Ikvd/mm))

# oneDNN is loaded by name when the first MLA weights come; which name goes with the header.
BLAS_SONAME := $(shell readelf -d "$$($(CC) -print-file-name=libdnnl.so)" 2>/dev/null | \
	sed -n 's/.*SONAME.*\[\(.*\)\].*/\1/p')
$(BUILD)/obj/libkv/blas.o: BASE += -DBLAS_SONAME='"$(or $(BLAS_SONAME),libdnnl.so)"'
$(BUILD)/obj/libkv/gemm.o: BASE += -O3

# Inference math and per-ISA kernels want the optimiser; nothing else needs to.
$(BUILD)/obj/tools/kvgen/ops.o: BASE += -O3
$(BUILD)/obj/kernels/kern_quant.o $(BUILD)/obj/kernels/kern_store.o: BASE += -O3
$(filter %_avx2.o,$(kernels_OBJS)): BASE += -O3 -mavx2 -mfma -mf16c
$(filter %_avx512.o %_avx512vbmi.o %_amx.o,$(kernels_OBJS)): BASE += -O3 -mavx2 -mfma -mf16c \
	-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16
$(filter %_avx512vbmi.o,$(kernels_OBJS)): BASE += -mavx512vbmi
$(filter %_amx.o,$(kernels_OBJS)): BASE += -mavx512vbmi -mgfni -mamx-tile -mamx-bf16

$(BUILD)/obj/%.o: %.c
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) $(INCS) -MMD -MP -c -o $@ $<

$(BUILD)/lib/%.a:
	$(call say,AR,$@)
	@mkdir -p $(@D)
	$(Q)rm -f $@ && ar rcs $@ $(filter %.o,$^)

# ---- products ---------------------------------------------------------------------------------

# libkv is its own code, the kernels, and what the in-process pool needs of the daemon.
POOL_OBJS  = $(mm_OBJS) $(call module_objs,kvd/srv/exec.c kvd/srv/dispatch.c kvd/io/dev_host.c)
LIBKV_OBJS = $(libkv-main_OBJS) $(libkv-embed_OBJS) $(kernels_OBJS) $(POOL_OBJS)
LIBKV_LIBS = -lmd -lm
KVD_LIBS   = -luring -linih

$(BUILD)/kvd: $(main_OBJS) $(BUILD)/lib/srv.a $(BUILD)/lib/io.a $(BUILD)/lib/mm.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDBASE) -o $@ $^ $(KVD_LIBS)

$(BUILD)/$(SONAME): $(LIBKV_OBJS) libkv/libkv.map
	$(call say,LD,$@)
	$(Q)$(CC) $(LDBASE) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=libkv/libkv.map \
		$(if $(SAN),,-Wl,-z,defs) -o $@ $(LIBKV_OBJS) $(LIBKV_LIBS)

$(BUILD)/libkv.so: $(BUILD)/$(SONAME)
	$(Q)ln -sf $(SONAME) $@

# One object with the internals made local, so that a static link sees the public names only.
$(BUILD)/libkv.a: $(LIBKV_OBJS)
	$(call say,AR,$@)
	$(Q)ld -r -o $(BUILD)/obj/libkv-all.o $(LIBKV_OBJS)
	$(Q)objcopy --localize-hidden $(BUILD)/obj/libkv-all.o
	$(Q)rm -f $@ && ar rcs $@ $(BUILD)/obj/libkv-all.o

TOOL_LINK = $(Q)$(CC) $(LDBASE) -o $@ $(filter %.o %.a,$^) -L$(BUILD) -lkv -ljansson -lmd -lm \
	-Wl,-rpath,'$$ORIGIN:$$ORIGIN/../lib'

$(BUILD)/kvctl: $(kvctl_OBJS) $(BUILD)/lib/common.a $(BUILD)/libkv.so
	$(call say,LD,$@)
	$(TOOL_LINK)
$(BUILD)/kvgen: $(kvgen_OBJS) $(BUILD)/lib/common.a $(BUILD)/libkv.so
	$(call say,LD,$@)
	$(TOOL_LINK)
$(BUILD)/kvbench: $(kvbench_OBJS) $(BUILD)/lib/common.a $(BUILD)/lib/mm.a $(BUILD)/lib/kernels.a $(BUILD)/libkv.so
	$(call say,LD,$@)
	$(TOOL_LINK)

# Everything but libkv: it replays through mm itself.
$(BUILD)/kvreplay: $(kvreplay_OBJS) $(BUILD)/lib/common.a $(BUILD)/lib/mm.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDBASE) -o $@ $^ -ljansson -lm

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(LIBDIR)/pkgconfig \
		$(DESTDIR)$(PREFIX)/include/kv $(DESTDIR)$(PREFIX)/share/man/man1 \
		$(DESTDIR)$(PREFIX)/share/man/man8 $(DESTDIR)$(PREFIX)/share/kvd
	install -m 755 $(BUILD)/kvd $(DESTDIR)$(PREFIX)/sbin/
	install -m 755 $(BUILD)/kvctl $(BUILD)/kvgen $(BUILD)/kvbench \
		$(BUILD)/kvreplay $(DESTDIR)$(PREFIX)/bin/
	install -m 755 $(BUILD)/$(SONAME) $(DESTDIR)$(LIBDIR)/
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libkv.so
	install -m 644 $(BUILD)/libkv.a $(DESTDIR)$(LIBDIR)/
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' \
		libkv/libkv.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/libkv.pc
	chmod 644 $(DESTDIR)$(LIBDIR)/pkgconfig/libkv.pc
	install -m 644 libkv/include/kv/*.h $(DESTDIR)$(PREFIX)/include/kv/
	install -m 644 docs/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -m 644 docs/man/*.8 $(DESTDIR)$(PREFIX)/share/man/man8/
	install -m 644 tools/kvgen/models/*.kvm $(DESTDIR)$(PREFIX)/share/kvd/
.PHONY: install

# ---- tests ------------------------------------------------------------------------------------

# tests/unit/FOLDER/x_test.c -> $(BUILD)/tests/FOLDER/x_test, linked with what FOLDER needs.
UNIT_SRCS  := $(wildcard tests/unit/*/*_test.c)
UNIT_TESTS := $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(UNIT_SRCS))
UNIT_OBJS  := $(call module_objs,$(UNIT_SRCS))
ALL_OBJS   += $(UNIT_OBJS)

libs = $(patsubst %,$(BUILD)/lib/%.a,$(1))
DAEMON_A := $(call libs,srv io mm)
LIBKV_A  := $(call libs,libkv-main libkv-embed kernels) $(BUILD)/lib/pool.a

$(BUILD)/lib/pool.a: $(POOL_OBJS)
$(BUILD)/lib/kvgen.a: $(filter-out %/main.o,$(kvgen_OBJS))
$(BUILD)/lib/kvreplay.a: $(filter-out %/main.o,$(kvreplay_OBJS))

$(call module_objs,$(wildcard tests/unit/mm/*.c)):      INCS := -Ikvd/mm -Itests/unit/mm -Itests/unit
$(call module_objs,tests/unit/mm/scale_test.c): INCS := -Ikvd/mm -Itools/common -Itools/kvbench
$(call module_objs,$(wildcard tests/unit/io/*.c tests/unit/srv/*.c tests/unit/ipc/*.c)): \
	INCS := -Ikvd -Iipc -Itests/unit -Itests/unit/srv
$(call module_objs,$(wildcard tests/unit/kernels/*.c)): INCS := -Ikernels -Itests/unit
$(call module_objs,$(wildcard tests/unit/libkv/*.c)): \
	INCS := -Ilibkv -Ilibkv/include -Iipc -Ikernels -Ikvd -Itests/unit -Itests/unit/libkv
$(call module_objs,$(wildcard tests/unit/kvgen/*.c)): \
	INCS := -Itools/kvgen -Itools/common -Ilibkv/include -Itests/unit
$(call module_objs,$(wildcard tests/unit/kvreplay/*.c)): \
	INCS := -Itools/kvreplay -Itools/common -Ikvd/mm -Itests/unit
$(call module_objs,$(wildcard tests/unit/kvbench/*.c)): \
	INCS := -Itools/kvbench -Ilibkv/include -Ikernels -Itests/unit
$(call module_objs,$(wildcard tests/unit/tools/*.c)): \
	INCS := -Itools/common -Ilibkv/include -Iipc -Itests/unit

TEST_LINK = $(Q)mkdir -p $(@D) && $(CC) $(LDBASE) -o $@ $(filter %.o,$^) \
	-Wl,--start-group $(filter %.a,$^) -Wl,--end-group -lcmocka $(1)

$(BUILD)/tests/mm/%: $(BUILD)/obj/tests/unit/mm/%.o $(BUILD)/lib/mm.a
	$(call TEST_LINK,-lm)
$(BUILD)/tests/mm/scale_test: $(call module_objs,tools/kvbench/mm_world.c tools/kvbench/bare.c \
	tools/common/trace.c)
$(BUILD)/tests/io/%: $(BUILD)/obj/tests/unit/io/%.o $(DAEMON_A)
	$(call TEST_LINK,$(KVD_LIBS))
$(BUILD)/tests/srv/%: $(BUILD)/obj/tests/unit/srv/%.o $(DAEMON_A)
	$(call TEST_LINK,$(KVD_LIBS))
$(BUILD)/tests/ipc/%: $(BUILD)/obj/tests/unit/ipc/%.o $(DAEMON_A)
	$(call TEST_LINK,$(KVD_LIBS))
$(BUILD)/tests/kernels/%: $(BUILD)/obj/tests/unit/kernels/%.o $(BUILD)/lib/kernels.a
	$(call TEST_LINK,-lm)
$(BUILD)/tests/libkv/%: $(BUILD)/obj/tests/unit/libkv/%.o $(LIBKV_A)
	$(call TEST_LINK,$(LIBKV_LIBS))
$(BUILD)/tests/kvgen/%: $(BUILD)/obj/tests/unit/kvgen/%.o $(BUILD)/lib/kvgen.a $(LIBKV_A) $(BUILD)/lib/common.a
	$(call TEST_LINK,$(LIBKV_LIBS) -ljansson)
$(BUILD)/tests/kvreplay/%: $(BUILD)/obj/tests/unit/kvreplay/%.o $(BUILD)/lib/kvreplay.a $(call libs,common mm)
	$(call TEST_LINK,-ljansson -lm)
$(BUILD)/tests/kvbench/%: $(BUILD)/obj/tests/unit/kvbench/%.o $(call module_objs,tools/kvbench/attn_shape.c) $(LIBKV_A)
	$(call TEST_LINK,$(LIBKV_LIBS))
$(BUILD)/tests/tools/%: $(BUILD)/obj/tests/unit/tools/%.o $(LIBKV_A) $(BUILD)/lib/common.a
	$(call TEST_LINK,$(LIBKV_LIBS) -ljansson)

# The model-based simulator over mm.
SIM_OBJS := $(call module_objs,$(wildcard tests/sim/*.c))
$(SIM_OBJS): INCS := -Ikvd/mm -Itests/sim
ALL_OBJS += $(SIM_OBJS)
$(BUILD)/tests/mmsim: $(SIM_OBJS) $(BUILD)/lib/mm.a
	$(Q)mkdir -p $(@D) && $(CC) $(LDBASE) -o $@ $^

# Fuzz harnesses with the standalone driver; FUZZ=1 (clang) links libFuzzer instead.
FUZZ_SRCS := $(wildcard tests/fuzz/*_fuzz.c)
FUZZERS   := $(patsubst tests/fuzz/%.c,$(BUILD)/tests/fuzz/%,$(FUZZ_SRCS))
$(call module_objs,$(wildcard tests/fuzz/*.c)): INCS := -Ikvd -Ikvd/mm -Iipc -Itests/fuzz
$(call module_objs,tests/fuzz/model_fuzz.c): INCS := -Itools/kvgen -Itools/common
$(call module_objs,tests/fuzz/record.c): INCS := -Ilibkv -Ilibkv/include -Iipc -Ikernels -Ikvd
ALL_OBJS += $(call module_objs,$(wildcard tests/fuzz/*.c))
FUZZ_MAIN = $(if $(FUZZ),,$(BUILD)/obj/tests/fuzz/standalone.o)
$(BUILD)/tests/fuzz/session_fuzz: FUZZ_WRAP := -Wl,--wrap=sock_peer
$(BUILD)/tests/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(BUILD)/obj/tests/fuzz/standalone.o $(DAEMON_A) $(BUILD)/lib/kvgen.a
	$(Q)mkdir -p $(@D) && $(CC) $(LDBASE) $(if $(FUZZ),-fsanitize=fuzzer) $(FUZZ_WRAP) -o $@ $< \
		$(FUZZ_MAIN) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(KVD_LIBS) -lm
fuzzers: $(FUZZERS)
# What libkv sends, as inputs of dispatch_fuzz.
RECORD_WRAP := dispatch_submit dispatch_reply exec_submit exec_default_config
$(BUILD)/tests/fuzz/record: $(BUILD)/obj/tests/fuzz/record.o $(LIBKV_A)
	$(Q)mkdir -p $(@D) && $(CC) $(LDBASE) $(RECORD_WRAP:%=-Wl,--wrap=%) -o $@ $< \
		-Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBKV_LIBS)
fuzz-corpus: $(BUILD)/tests/fuzz/record
	rm -f tests/fuzz/corpus/dispatch/traffic-*
	$(BUILD)/tests/fuzz/record tests/fuzz/corpus/dispatch
.PHONY: fuzzers fuzz-corpus

# End-to-end helpers; churn-hooked counts and kills at ring publications.
E2E_SRCS  := $(wildcard tests/e2e/*.c)
E2E_PROGS := $(patsubst tests/e2e/%.c,$(BUILD)/tests/e2e/%,$(filter-out %/hook.c,$(E2E_SRCS))) \
	$(BUILD)/tests/e2e/churn-hooked
$(call module_objs,$(E2E_SRCS)): INCS := -Ilibkv/include -Iipc -Itools/common
ALL_OBJS += $(call module_objs,$(E2E_SRCS))
$(BUILD)/tests/e2e/churn-hooked: $(call module_objs,tests/e2e/churn.c tests/e2e/hook.c) $(LIBKV_A)
	$(Q)mkdir -p $(@D) && $(CC) $(LDBASE) -Wl,--wrap=queue_publish -o $@ $(filter %.o,$^) \
		-Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBKV_LIBS)
$(BUILD)/tests/e2e/%: $(BUILD)/obj/tests/e2e/%.o $(BUILD)/lib/common.a $(BUILD)/libkv.so
	$(Q)mkdir -p $(@D) && $(CC) $(LDBASE) -o $@ $(filter %.o %.a,$^) -L$(BUILD) -lkv -ljansson -lm -ldl \
		-Wl,-rpath,'$$ORIGIN/../..'

tests-unit: $(UNIT_TESTS) $(BUILD)/kvd $(BUILD)/kvreplay
tests-all: all $(UNIT_TESTS) $(BUILD)/tests/mmsim $(FUZZERS) $(BUILD)/tests/fuzz/record $(E2E_PROGS)
check-unit check-e2e check-sim check-fuzz check-san check-lint check-valgrind: check-%: tests-all
	@tests/run.sh $(BUILD) $*
check: deps
	@$(MAKE) --no-print-directory tests-all
	@tests/run.sh $(BUILD) lint unit sim fuzz e2e san valgrind
soak: tests-all
	@tests/run.sh $(BUILD) soak
lint:
	@tests/lint.sh $(BUILD)
coverage:
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/cov COV=1 OPT=-O0 tests-unit $(BUILD)/cov/tests/mmsim
	@tests/coverage.sh $(BUILD)/cov
# MUTANTS= how many (0: all), SEED= which sample, FILES= of kvd/mm.
mutate:
	@python3 tests/mutate/mutate.py --cc $(CC) --build $(BUILD)/mutate --mutants $(or $(MUTANTS),300) \
		--seed $(or $(SEED),1) --files $(FILES)
.PHONY: mutate
.PHONY: tests-unit tests-all check check-unit check-e2e check-sim check-fuzz check-san check-lint \
	check-valgrind soak lint coverage

# ---- the rest ---------------------------------------------------------------------------------

deps:
	@tools/install-deps.sh
demo: deps
	@$(MAKE) --no-print-directory all
	@tools/demo.sh $(BUILD)
bench: all
	@$(BUILD)/kvbench all
format:
	clang-format -i $$(git ls-files '*.c' '*.h')
clean:
	rm -rf $(BUILD)
help:
	@echo 'make            build everything into $(BUILD)/'
	@echo 'make demo       install what is missing, build, run two engines on one pool'
	@echo 'make check      all tests; check-unit check-e2e check-sim check-fuzz check-san check-lint alone'
	@echo 'make soak       the long runs: every kill point, long simulation and fuzzing'
	@echo 'make fuzz-corpus  record traffic of libkv anew as seeds for the fuzzers'
	@echo 'make bench      figures, as ratios within one run'
	@echo 'make install    DESTDIR= PREFIX=$(PREFIX)'
	@echo 'make mutate     changes kvd/mm mechanically: its tests must notice; MUTANTS= SEED= FILES='
	@echo 'make coverage   line coverage of kvd/mm'
	@echo 'variables: BUILD= CC= SAN=address,undefined|thread OPT= V=1'
.PHONY: deps demo bench format clean help

.SECONDARY:
-include $(ALL_OBJS:.o=.d)
