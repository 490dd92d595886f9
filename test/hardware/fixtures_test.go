// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// fixtures are commands that only read. The parsers of the driver meet their outputs.
var fixtures = map[string][]string{
	"nvidia-smi-L":                  {"nvidia-smi", "-L"},
	"nvidia-smi-q":                  {"nvidia-smi", "-q"},
	"nvidia-smi-q-x":                {"nvidia-smi", "-q", "-x"},
	"mig-lgip":                      {"nvidia-smi", "mig", "-lgip"},
	"mig-lgipp":                     {"nvidia-smi", "mig", "-lgipp"},
	"mig-lcip":                      {"nvidia-smi", "mig", "-lcip"},
	"compute-policy-l":              {"nvidia-smi", "compute-policy", "-l"},
	"topo-m":                        {"nvidia-smi", "topo", "-m"},
	"nvlink-s":                      {"nvidia-smi", "nvlink", "-s"},
	"proc-devices":                  {"cat", "/proc/devices"},
	"proc-driver-nvidia-version":    {"cat", "/proc/driver/nvidia/version"},
	"proc-driver-nvidia-params":     {"cat", "/proc/driver/nvidia/params"},
	"proc-driver-nvidia-mig-minors": {"head", "-n", "60", "/proc/driver/nvidia-caps/mig-minors"},
	"proc-modules":                  {"cat", "/proc/modules"},
	"mounts":                        {"cat", "/proc/self/mounts"},
	"ldconfig-p":                    {"ldconfig", "-p"},
	"uname":                         {"uname", "-srm"},
}

// personal are the other parts of a recording that identify a GPU or machine.
var personal = regexp.MustCompile(`(Serial Number|Serial|PDI|GUID|Timestamp)( *: )[^\n]*|<(serial|uuid|pdi|gpu_fabric_guid|timestamp)>[^<]*`)

func anonymous(text string) string {
	return personal.ReplaceAllStringFunc(withoutUUIDs(text), func(found string) string {
		if strings.HasPrefix(found, "<") {
			return found[:strings.Index(found, ">")+1]
		}
		return found[:strings.Index(found, ":")+1] + " 0"
	})
}

// TestFixtures_ReadOnlyCommands_Written writes what the machine prints, without what identifies it.
func TestFixtures_ReadOnlyCommands_Written(t *testing.T) {
	_, s, ok := machine(t)
	if !ok || *out == "" {
		return
	}
	dir := filepath.Join(*out, "fixtures")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	save := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name+".txt"), []byte(anonymous(text)+"\n"), 0o644); err != nil {
			t.Error(err)
		}
	}
	for name, command := range fixtures {
		text, err := output(exec.Command(command[0], command[1:]...), 20*time.Second)
		if err != nil {
			text = fmt.Sprintf("%s\n(%v)", text, err)
		}
		save(name, text)
	}
	for _, g := range s.GPUs {
		for _, file := range []string{"information", "power"} {
			text, err := os.ReadFile(filepath.Join(*procRoot, "driver/nvidia/gpus", g.PCIAddress, file))
			save(fmt.Sprintf("proc-driver-nvidia-gpu%d-%s", g.Minor, file), strings.TrimSpace(string(text)+outcome(err)))
		}
	}
	var nodes, capabilities []string
	_ = filepath.WalkDir("/dev", func(path string, d fs.DirEntry, err error) error {
		if info, infoErr := os.Lstat(path); err == nil && infoErr == nil && strings.Contains(path, "nvidia") {
			nodes = append(nodes, info.Mode().String()+" "+path)
		}
		return nil
	})
	save("nodes", strings.Join(nodes, "\n"))
	_ = filepath.WalkDir(filepath.Join(*procRoot, "driver/nvidia/capabilities"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			text, err := os.ReadFile(path)
			capabilities = append(capabilities, path+":\n"+string(text)+outcome(err))
		}
		return nil
	})
	save("capabilities", strings.Join(capabilities, "\n"))
}

// settings must be the same after a run.
const settings = "compute_mode,persistence_mode,mig.mode.current,mig.mode.pending,accounting.mode,ecc.mode.current,ecc.mode.pending," +
	"clocks.applications.graphics,clocks.applications.memory,power.limit"

// readSettings returns the settings of all GPUs, or "" where there is no nvidia-smi.
func readSettings() string {
	text, err := output(exec.Command("nvidia-smi", "--query-gpu="+settings, "--format=csv"), 20*time.Second)
	if err != nil {
		return ""
	}
	return text
}
