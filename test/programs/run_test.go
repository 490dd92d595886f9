// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gpu-dra-driver/sim/simtest"
)

// The programs read fixed paths, so each runs in a mount namespace with the simulated machine's /sys and /proc.
const enter = `mount --bind "$GPUSIM_ROOT/sys" /sys && mount --bind "$GPUSIM_ROOT/proc" /proc && exec "$@"`

var paths = map[string]string{}

// program returns the path of one of NVIDIA's programs, which hack/tool.sh builds if need be.
func program(t *testing.T, name string) string {
	t.Helper()
	if paths[name] == "" {
		path, err := exec.Command("../../hack/tool.sh", "--path", name).Output()
		if err != nil {
			t.Fatalf("building %s: %v", name, err)
		}
		paths[name] = strings.TrimSpace(string(path))
	}
	return paths[name]
}

// run runs one of NVIDIA's programs on a simulated machine and returns its output.
func run(t *testing.T, m *simtest.DriverRoot, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", enter, "sh", program(t, name)}, args...)...)
	cmd.Env = append(os.Environ(), "GPUSIM_ROOT="+m.Path, "LD_LIBRARY_PATH="+filepath.Dir(m.Library))
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
