// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	_ "embed"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/internal/recordedtest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

var update = flag.Bool("update", false, "write the table of docs/compatibility.md")

//go:embed functions.tsv
var table string

// branches are the branches of NVIDIA's driver that came with a version of CUDA (CUDA toolkit release notes, table "CUDA toolkit
// and corresponding driver versions").
var branches = []struct{ cuda, driver string }{
	{"11.0", "450"}, {"11.2", "460"}, {"11.4", "470"}, {"11.6", "510"}, {"11.8", "520"}, {"12.0", "525"}, {"12.2", "535"},
	{"12.4", "550"}, {"13.0", "580"}, {"13.4", "615"},
}

// functions returns the functions of the table with their first CUDA.
func functions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		cuda, name, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			t.Fatalf("functions.tsv has the line %q", line)
		}
		all[name] = cuda
	}
	return all
}

// features names the function of NVML that each feature needs, beside attributes.
var features = map[string]string{
	"nvmlGpmMetricsGet":                       "activity by GPM",
	"nvmlGpmMigSampleGet":                     "activity of partitions",
	"nvmlDeviceGetGpuFabricInfo":              "the fabric of NVSwitch",
	"nvmlDeviceGetSramEccErrorStatus":         "the fault of SRAM that exceeds its threshold",
	"nvmlDeviceGetUnrepairableMemoryFlag_v1":  "the fault of memory that cannot be repaired",
	"nvmlDeviceSetMemoryLimits_v1":            "memory limits of containers",
	"nvmlDeviceGetComputeRunningProcesses_v3": "processes of a GPU",
}

// number makes versions of CUDA comparable.
func number(t *testing.T, cuda string) int {
	t.Helper()
	var major, minor int
	if _, err := fmt.Sscanf(cuda, "%d.%d", &major, &minor); err != nil {
		t.Fatalf("CUDA %q: %v", cuda, err)
	}
	return 100*major + minor
}

func TestFunctions_Table_IsOfTheCode(t *testing.T) {
	files, err := filepath.Glob("../../internal/nvml/native/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	want := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`"(nvml[A-Z]\w+)"`).FindAllStringSubmatch(string(text), -1) {
			want[match[1]] = true
		}
	}
	got, known := map[string]bool{}, map[string]bool{}
	for _, b := range branches {
		known[b.cuda] = true
	}
	for name, cuda := range functions(t) {
		got[name] = true
		if !known[cuda] {
			t.Errorf("%s: no branch of the driver has CUDA %s", name, cuda)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("functions (-called +in functions.tsv):\n%s", diff)
	}
}

// TestFunctions_RecordedDrivers_HaveThem compares the table with the functions of real drivers.
func TestFunctions_RecordedDrivers_HaveThem(t *testing.T) {
	recordedtest.Each(t, func(t *testing.T, r recordedtest.Recording) {
		_, version, _ := strings.Cut(r.Name, "-")
		branch, _, _ := strings.Cut(version, ".")
		i := slices.IndexFunc(branches, func(b struct{ cuda, driver string }) bool { return b.driver == branch })
		if i < 0 {
			t.Fatalf("the branch %s of the recording is not in the table", branch)
		}
		var symbols []string
		for _, one := range r.Facts(t)["nvml.symbols"].([]any) {
			symbols = append(symbols, one.(string))
		}
		for name, cuda := range functions(t) {
			if has, want := slices.Contains(symbols, name), number(t, cuda) <= number(t, branches[i].cuda); has != want {
				t.Errorf("%s of CUDA %s: the driver %s has it: %t", name, cuda, version, has)
			}
		}
	})
}

// lacking matches the calls of functions that came after a version of CUDA.
func lacking(t *testing.T, cuda string) func(int, nvmltest.Call) bool {
	all, last := functions(t), number(t, cuda)
	return func(_ int, c nvmltest.Call) bool {
		first, ok := all[c.Query]
		return ok && number(t, first) > last
	}
}

// published returns the devices of a simulated machine by type, and the attributes of whole GPUs.
func published(t *testing.T, cuda string) (count map[string]int, attributes map[string]bool) {
	machine := simtest.MachineInMemory(t, "hgx-h100", 2)
	var calls nvmltest.Calls
	calls.Answer(nvml.FunctionNotFound, lacking(t, cuda))
	none := t.TempDir()
	i := inventory.New(inventory.Options{Library: nvmlfake.WithHook(machine, calls.Do), ProcRoot: none, SysRoot: none, DevRoot: none})
	snapshot, err := i.Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pool, _ := resourceslices.Build(snapshot, nil, resourceslices.Options{Node: "node", Taints: true, SharedDevices: true, Counters: true})
	count, attributes = map[string]int{}, map[string]bool{}
	for _, slice := range pool.Slices {
		for _, d := range slice.Devices {
			kind := *d.Attributes["type"].StringValue
			count[kind]++
			for name := range d.Attributes {
				if kind == "gpu" {
					attributes[string(name)] = true
				}
			}
		}
	}
	return count, attributes
}

// prepared tries a claim on a simulated machine.
func prepared(t *testing.T, cuda string, claim func(e *devicestatetest.Env)) error {
	e := devicestatetest.NewSimulatedGPUs(t, "hgx-h100", 2)
	p := e.Start()
	claim(e)
	e.Sim.NVML.Answer(nvml.FunctionNotFound, lacking(t, cuda))
	_, err := p.Prepare(t.Context(), e.Claims["a"])
	if err == nil {
		e.Unprepare(p, "a")
	}
	return err
}

// kinds are the ways to use a GPU, each with the type of its devices and a claim.
var kinds = []struct {
	name, device string
	claim        func(*devicestatetest.Env)
}{
	{"whole GPU", "gpu", func(e *devicestatetest.Env) { e.Claim("a", "0") }},
	{"share by MPS", "gpu", func(e *devicestatetest.Env) { e.SharedClaim("a", 10, "", "0") }},
	{"partition", "mig", func(e *devicestatetest.Env) { e.Claim("a", "0 1g.10gb 0") }},
	{"NVLink group", "nvlink-group", func(e *devicestatetest.Env) { e.GroupClaim("a", 0, 2) }},
}

// onRealGPUs are the uses that were seen on a real GPU, by branch of the driver: docs/design/tests.md.
var onRealGPUs = map[string][]string{"580": {"whole GPU", "share by MPS"}}

const (
	page  = "../../docs/compatibility.md"
	begin = "<!-- drivers: begin, written by go -C test test ./drivers -update -->\n"
	end   = "<!-- drivers: end -->\n"
)

// TestDrivers_FunctionsMissing_UsesAreNoOrExpected writes a row for each branch. A use that the driver does not publish must not
// be prepared, and one that it publishes must be.
func TestDrivers_FunctionsMissing_UsesAreNoOrExpected(t *testing.T) {
	var b strings.Builder
	var before map[string]bool // attributes of the row above
	b.WriteString("| NVIDIA's driver | CUDA |")
	for _, k := range kinds {
		b.WriteString(" " + k.name + " |")
	}
	b.WriteString(" adds |\n" + strings.Repeat("| --- ", len(kinds)+3) + "|\n")
	for _, branch := range branches {
		count, attributes := published(t, branch.cuda)
		fmt.Fprintf(&b, "| %s | %s |", branch.driver, branch.cuda)
		for _, k := range kinds {
			err := prepared(t, branch.cuda, k.claim)
			if (count[k.device] > 0) != (err == nil) {
				t.Errorf("%s with the driver %s: %d devices are published, and a claim has the error %v", k.name, branch.driver, count[k.device], err)
			}
			cell := "expected"
			if err != nil {
				cell = "no"
			} else if slices.Contains(onRealGPUs[branch.driver], k.name) {
				cell = "ran"
			}
			b.WriteString(" " + cell + " |")
		}
		var added []string
		for _, name := range slices.Sorted(maps.Keys(attributes)) {
			if before != nil && !before[name] {
				added = append(added, "`"+name+"`")
			}
		}
		for name, feature := range features {
			if functions(t)[name] == branch.cuda {
				added = append(added, feature)
			}
		}
		before = attributes
		slices.Sort(added)
		b.WriteString(" " + strings.Join(added, ", ") + " |\n")
	}
	for branch := range onRealGPUs {
		if found, err := filepath.Glob("../hardware/recorded/*-" + branch + ".*"); err != nil || len(found) == 0 {
			t.Errorf("test/hardware/recorded has no recording with a driver %s: %v", branch, err)
		}
	}
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(data), begin)
	now, after, ended := strings.Cut(rest, end)
	switch {
	case !found || !ended:
		t.Fatalf("%s has no table between %q and %q", page, begin, end)
	case *update:
		if err := os.WriteFile(page, []byte(head+begin+b.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case now != b.String():
		t.Errorf("the table of %s has drifted: run the test with -update. Its rows are now\n%s", page, b.String())
	}
}

// TestMatrix_PatchesThatRan_AreInTheTableOfVersions compares the matrix with the table that a script writes. make test runs
// one patch more.
func TestMatrix_PatchesThatRan_AreInTheTableOfVersions(t *testing.T) {
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	part := func(from, to string) string {
		_, rest, found := strings.Cut(string(data), from)
		text, _, ended := strings.Cut(rest, to)
		if !found || !ended {
			t.Fatalf("%s has nothing between %q and %q", page, from, to)
		}
		return text
	}
	patch := regexp.MustCompile(`1\.\d+\.\d+`)
	ran := map[string]bool{"1.37.1": true}
	for _, row := range strings.Split(part("<!-- versions: begin", "<!-- versions: end"), "\n") {
		if cells := strings.Split(row, "|"); len(cells) > 2 && patch.MatchString(cells[1]) {
			ran[strings.TrimSpace(cells[1])] = true
		}
	}
	matrix := map[string]bool{}
	for _, row := range strings.Split(part("<!-- matrix:", "<!-- end of matrix"), "\n") {
		cells := strings.Split(row, "|")
		if len(cells) < 3 || !strings.HasPrefix(strings.TrimSpace(cells[2]), "ran") {
			continue
		}
		patches := patch.FindAllString(cells[2], -1)
		if len(patches) == 0 {
			patches = patch.FindAllString(cells[1], -1)
		}
		for _, p := range patches {
			matrix[p] = true
		}
	}
	if diff := cmp.Diff(ran, matrix); diff != "" {
		t.Errorf("patches that ran (-table of versions +matrix):\n%s", diff)
	}
}
