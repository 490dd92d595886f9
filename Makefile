# The driver's daily commands. Everything they need is built from Go modules, but for Debian's Chromium, which the test of the
# web page uses.
SHELL      := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
VERSION    ?= 0.1.0
KUBERNETES ?= v1.37.1
BIN        := $(CURDIR)/bin
DIST       := $(CURDIR)/dist
LDFLAGS    := -s -w -X main.version=$(VERSION)
DEMO_DIR   ?= $(if $(XDG_RUNTIME_DIR),$(XDG_RUNTIME_DIR),/tmp)/gpu-dra-driver-demo
COVER_MIN  := 92
# go-nvml calls functions that nvml.h declares deprecated. Without this flag gcc prints hundreds of warnings about them.
# Paths are trimmed, so that another clone's builds and tests come from the same build cache. The images have the same tags:
# a program with cgo and one without are then compiled from the same files. hack/env.sh reads these lines.
export TAGS ?= netgo,osusergo,grpcnotrace
export GOFLAGS ?= -trimpath -tags=$(TAGS)
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the driver, the simulator and the test tools into bin/
	@hack/build.sh "$(BIN)" "$(LDFLAGS)"

IMAGES := go -C deployments run ./images --version $(VERSION) --out $(DIST) $(if $(KEY),--key $(abspath $(KEY)))
.PHONY: images
images: build ## Build the images with SBOMs into dist/, without Docker; KEY=FILE signs them
	@$(IMAGES)

.PHONY: images-all
images-all: ## The same for amd64 and arm64: one OCI index for both; installs the cross compiler
	@hack/cross-packages.sh
	@$(IMAGES) --arch amd64,arm64

.PHONY: dist
dist: ## Archives of the kubectl plugin for Linux, macOS and Windows, and its krew manifest, into dist/kubectl/
	@hack/dist.sh $(VERSION) $(DIST)/kubectl
	@go -C test test -count=1 ./dist -dir $(DIST)/kubectl

.PHONY: chart
chart: ## Lint the Helm charts of driver and simulator, and package them into dist/
	@mkdir -p $(DIST)
	@hack/tool.sh helm lint deployments/helm/gpu-dra-driver deployments/helm/gpu-simulator
	@hack/tool.sh helm package deployments/helm/gpu-dra-driver deployments/helm/gpu-simulator --destination $(DIST)

.PHONY: release
release: ## Images, chart, archives, notes, provenance and checksums into dist/release-VERSION/; REGISTRY=HOST/PATH pushes, KEY=FILE signs
	@hack/release.sh $(VERSION) $(DIST)

.PHONY: site
site: ## The documentation as a static site, with search and checked links, into dist/site/VERSION/
	@go -C test run ./site -version $(VERSION) -out $(DIST)/site/$(VERSION)

.PHONY: cluster-build
cluster-build: build ## Build Kubernetes, containerd, etcd, runc and CNI plugins into the cache (once); DOWNLOAD=1 downloads their releases
	@$(BIN)/onenode build --kubernetes $(KUBERNETES) $(if $(DOWNLOAD),--download $(DOWNLOAD))

.PHONY: demo
demo: images cluster-build ## See it work: a cluster, 8 simulated H100s, the driver, every demo; then clean up; DOWNLOAD=1 builds less
	@hack/demo.sh $(KUBERNETES)

.PHONY: try
try: ## See without a cluster, root or a GPU what the demos' pods get; DEMO=NAME for one in full, BOARD=NAME for another board
	@mkdir -p $(BIN)
	@go -C test/cluster build -trimpath -o $(BIN)/gobuild ./cmd/gobuild
	@cd test && CGO_ENABLED=0 $(BIN)/gobuild "build try" $(BIN)/try -trimpath ./try
	@$(BIN)/try -board "$(or $(BOARD),hgx-h100)" $(DEMO)

.PHONY: demo-up
demo-up: images cluster-build ## The same cluster and driver, left running for you
	@$(BIN)/onenode up --dir $(DEMO_DIR) --kubernetes $(KUBERNETES) >/dev/null
	@ONENODE=$(BIN)/onenode ONENODE_DIR=$(DEMO_DIR) KUBECONFIG=$(DEMO_DIR)/kubeconfig $(BIN)/demo install
	@echo "export KUBECONFIG=$(DEMO_DIR)/kubeconfig PATH=$(BIN):$$(dirname $$($(BIN)/onenode which kubectl)):\$$PATH" >$(DEMO_DIR)/env
	@echo "Then try:  kubectl apply -f demo/mig-mixed.yaml && kubectl gpu layout"
	@echo "           kubectl gpu ls && kubectl gpu ls pods -A && kubectl gpu claims -A && kubectl gpu doctor"
	@echo "Run this line in your shell first, or  . $(DEMO_DIR)/env:"
	@cat $(DEMO_DIR)/env

.PHONY: demo-down
demo-down: ## Remove what demo-up made
	@$(BIN)/onenode down --dir $(DEMO_DIR)

.PHONY: kind-up
kind-up: ## The demos' cluster on kind, for a machine with Docker and kind
	@demo/kind/kind.sh up

.PHONY: kind-run
kind-run: ## Every demo on it; DEMO="one-gpu mig-one" for some
	@demo/kind/kind.sh run $(DEMO)

.PHONY: kind-down
kind-down: ## Remove it
	@demo/kind/kind.sh down

.PHONY: test-kind
test-kind: ## A real kind cluster on Debian, without a registry: demos, faults, reboots; DEMO="one-gpu mig-one" for some demos
	@hack/kind-packages.sh
	@$(MAKE) --no-print-directory images cluster-build
	@hack/test-kind.sh $(KUBERNETES) $(DEMO)

OTHER_MODULES := deployments test test/monitoring test/cluster
RUN_PHASES := export KUBERNETES=$(KUBERNETES) COVER_MIN=$(COVER_MIN) OTHER_MODULES="$(OTHER_MODULES)"; go build -o $(BIN)/phases ./hack/phases && exec $(BIN)/phases
.PHONY: check
check: ## A quick answer about a change: compile, lint what changed, unit tests with a tenth of the random cases
	@$(RUN_PHASES) check

.PHONY: test
test: ## Everything that CI runs, until the first failure (KEEP_GOING=1: all of it); a table of times stays in dist/test
	@$(RUN_PHASES) test $(PHASE)

.PHONY: test-all
test-all: ## Everything that is tested, for a night: make test and all that takes longer; PHASE="race versions" for some; installs Debian packages
	@$(RUN_PHASES) test-all $(PHASE)

.PHONY: test-unit
test-unit: ## Unit tests with all random cases, all matrices; MODULES=test for some modules
	@hack/test-unit.sh all

.PHONY: test-arm64
test-arm64: ## Tests of the system calls, built for arm64, under qemu-user on another machine; PACKAGES=./pkg/claim/plan for others
	@hack/test-arm64.sh $(PACKAGES)

.PHONY: test-cluster
test-cluster: cluster-build ## The one-machine Kubernetes itself
	@cd test/cluster && go test -count=1 -timeout 15m ./...

.PHONY: test-e2e
test-e2e: images cluster-build ## End to end on the one-machine Kubernetes, with the images and the chart; RUN=REGEX or SUITE=nodes for some
	@FLAGS="$(FLAGS)" hack/test-e2e.sh $(KUBERNETES) "$(RUN)" $(SUITE)

.PHONY: test-ecosystem
test-ecosystem: images cluster-build ## Kueue's and Karpenter's own code with simulated boards, gangs of kube-scheduler, queues of Kueue, recipes with JobSet, LeaderWorkerSet, PyTorchJob, MPIJob, KubeRay and KEDA; SUITE=recipes for one
	@hack/test-ecosystem.sh $(KUBERNETES) $(SUITE)

.PHONY: test-release
test-release: images cluster-build ## A release in a local registry, installed from there, upgraded under pods and back
	@hack/test-release.sh $(KUBERNETES)

.PHONY: test-monitoring
test-monitoring: images cluster-build ## The chart's rules and dashboards, with Prometheus, an autoscaler and Debian's chromium; RUN=REGEX for a part
	@hack/test-monitoring.sh $(KUBERNETES) "$(RUN)" $(FLAGS)

.PHONY: test-versions
test-versions: images ## End to end on older versions of Kubernetes, into a table of docs/compatibility.md; VERSIONS="v1.34.12" for some
	@hack/test-versions.sh $(VERSIONS)

.PHONY: test-web
test-web: images cluster-build ## The page of kubectl gpu web in headless Chromium, and its speed with 5,000 nodes; needs Debian's chromium
	@hack/test-web.sh $(KUBERNETES) $(FLAGS)

.PHONY: test-mutation
test-mutation: ## Break the code in known ways and check that a test catches each; NAME="text" for some
	@go -C test run ./mutation $(NAME)

.PHONY: test-hardware
test-hardware: ## Checks on the real GPUs of this machine, if it has any; changes no setting
	@go -C test test -count=1 -v -tags $(TAGS),hardware ./hardware

.PHONY: hardware-bundle
hardware-bundle: images cluster-build ## One archive that checks the driver on another machine's GPUs, without Go and network, into dist/
	@hack/hardware-bundle.sh $(KUBERNETES) $(DIST)

.PHONY: hardware-cluster
hardware-cluster: images cluster-build ## The same with pods, on a Kubernetes in parts of 45 MiB, into dist/hardware-cluster/
	@hack/hardware-cluster.sh $(KUBERNETES) $(DIST)

.PHONY: hardware
hardware: hardware-bundle ## The same on this machine; facts into dist/hardware/
	@hack/hardware-run.sh $(DIST)

.PHONY: bench
bench: images cluster-build ## Speed and memory beside their floors
	@hack/bench.sh $(KUBERNETES)
	@go test -run '^$$' -bench '^BenchmarkAllocate' -benchtime 200x ./pkg/node/resourceslices
	@go test -run '^$$' -bench '^BenchmarkSchedulingCost' -benchtime 1x ./pkg/node/resourceslices
	@go test -run '^$$' -bench '^BenchmarkAsk' -benchtime 2x -benchmem ./pkg/cluster/why
	@go test -run '^$$' -bench '^BenchmarkKeeper' -benchtime 1x ./pkg/cluster/podevents
	@go test -run '^$$' -bench '^BenchmarkRefresh' -benchtime 50x ./pkg/show/web
	@go test -run '^$$' -bench '^Benchmark(Read|Scrape|Scan)_' -benchtime 30x ./pkg/node/sampler ./pkg/node/metrics ./pkg/gpu/inventory

.PHONY: bench-scheduling
bench-scheduling: cluster-build ## Pods a second of the real scheduler with many nodes, beside plain devices; RUN="mixed 1.36" or FLAGS="-nodes 500"
	@hack/bench-scheduling.sh $(KUBERNETES) "$(RUN)" $(FLAGS)

.PHONY: lint
lint: ## Formatting, vet, linters, prose, drift of generated files
	@hack/lint.sh

.PHONY: generate
generate: ## Write the generated reference tables again
	@hack/generate.sh

.PHONY: clean
clean: ## Remove what the build made
	@rm -rf $(BIN) $(DIST)
