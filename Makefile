# cloche: `make run` serves, `make test` tests; both install what is missing first.
BUILD   ?= build
CC      ?= cc
VERSION := 0.1.0

CFLAGS_BASE := -std=gnu11 -g -Isrc -D_GNU_SOURCE -DCLOCHE_VERSION='"$(VERSION)"' \
        -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Wvla \
        -Wpointer-arith -Wundef -Wwrite-strings -Wold-style-definition -Werror \
        -fPIE -fno-strict-aliasing
ifdef SANITIZE
CFLAGS_MODE  := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -DCLOCHE_SANITIZE
LDFLAGS_MODE := -fsanitize=address,undefined
else
CFLAGS_MODE  := -O2 -D_FORTIFY_SOURCE=2 -fstack-protector-strong
LDFLAGS_MODE := -Wl,-z,relro,-z,now -pie
endif
CFLAGS  := $(CFLAGS_BASE) $(CFLAGS_MODE) $(EXTRA_CFLAGS)
LDFLAGS := $(LDFLAGS_MODE)

# Static where Debian has an archive: the keeper forks an agent for every sandbox, and each
# shared library costs that fork time and the idle sandbox memory (ARCHITECTURE.md has the
# figures). ISA-L and libc come shared.
LIBS := -Wl,-Bstatic -luv_a -lhttp_parser -ljansson -lsqlite3 -lseccomp -larchive \
        -Wl,-Bdynamic -lisal -lm -lpthread -ldl

SRCS := $(wildcard src/*/*.c src/*/*/*.c)
OBJS := $(SRCS:src/%.c=$(BUILD)/obj/%.o)
MAIN := $(BUILD)/obj/cli/main.o
LIB_OBJS := $(filter-out $(MAIN),$(OBJS))

.PHONY: all
all: $(BUILD)/cloche

$(BUILD)/cloche: $(OBJS)
	@echo '  LINK  $@'
	@$(CC) $(LDFLAGS) -o $@ $(OBJS) $(LIBS)

$(BUILD)/obj/%.o: src/%.c Makefile
	@mkdir -p $(@D)
	@echo '  CC    $<'
	@$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/libcloche-all.a: $(LIB_OBJS)
	@rm -f $@
	@ar rcs $@ $(LIB_OBJS)

UNIT_SRCS := $(wildcard tests/unit/test_*.c)
UNIT_BINS := $(UNIT_SRCS:tests/unit/%.c=$(BUILD)/unit/%)

$(BUILD)/unit/%: tests/unit/%.c $(wildcard tests/unit/*.h) $(BUILD)/libcloche-all.a
	@mkdir -p $(@D)
	@echo '  TEST  $@'
	@$(CC) $(CFLAGS) -Itests/unit $(LDFLAGS) -o $@ $< $(BUILD)/libcloche-all.a $(LIBS)

.PHONY: unit-bins
unit-bins: $(UNIT_BINS)

.PHONY: clean
clean:
	rm -rf build build-asan build-fuzz

-include $(OBJS:.o=.d)

# --- for people -----------------------------------------------------------------
.PHONY: deps run test check-layers unit e2e abuse asan fuzz bench format install

deps:
	@tools/deps.sh build

deps-test: deps
	@tools/deps.sh test

run: deps
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@exec $(BUILD)/cloche serve

E2E   := $(sort $(wildcard tests/e2e/test_*.py tests/compat/test_*.py))
ABUSE := $(sort $(wildcard tests/abuse/test_*.py))

# Everything, and once more under AddressSanitizer and UBSan.
test: deps-test
	@$(MAKE) --no-print-directory -j$$(nproc) all unit-bins
	@$(MAKE) --no-print-directory -j$$(nproc) SANITIZE=1 BUILD=build-asan all unit-bins
	@tests/all.sh

unit: deps-test
	@$(MAKE) --no-print-directory -j$$(nproc) unit-bins
	@tests/run.sh tools/layers.sh $(UNIT_BINS)

e2e: deps-test all
	@tests/run.sh $(E2E)

abuse: deps-test all
	@tests/run.sh $(ABUSE)

# Long fuzzing has a target of its own: FUZZ_SECONDS each.
FUZZ_SECONDS ?= 60
FUZZ_SRCS := $(wildcard tests/fuzz/fuzz_*.c)
fuzz:
	@tools/fuzz.sh $(FUZZ_SECONDS) $(FUZZ_SRCS)

bench: deps
	@tools/deps.sh bench
	@$(MAKE) --no-print-directory -j$$(nproc) all $(BUILD)/bench/bench
	@/usr/bin/python3 tests/bench/bench.py $(BENCH_ARGS)

$(BUILD)/bench/bench: tests/bench/bench.c tests/bench/client.c tests/bench/client.h
	@mkdir -p $(@D)
	@$(CC) -O2 -g -D_GNU_SOURCE -Wall -Wextra -Werror -o $@ tests/bench/bench.c tests/bench/client.c -lpthread

format:
	clang-format -i $$(git ls-files 'src/*.[ch]' 'tests/*.[ch]')
