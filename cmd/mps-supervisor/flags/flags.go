// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package flags parses the command line of the MPS supervisor. Each flag can also be set by an environment variable.
package flags

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"gpu-dra-driver/cmd/envflags"
)

// Config holds the values of the flags.
type Config struct {
	MPSDir, DriverRoot, DevRoot, ShmSize, BootIDFile string

	Version bool
	// Shm is ShmSize in the form of tmpfs.
	Shm string
}

// New returns the flags. Parsing them sets the fields of c.
func New(c *Config) *pflag.FlagSet {
	fs := envflags.New("mps-supervisor")
	fs.StringVar(&c.MPSDir, "mps-dir", "/var/lib/kubelet/plugins/gpu.nvidia.com/mps",
		"Directory of the daemons, at the same path on the node; its mounts must propagate to the node.")
	fs.StringVar(&c.DriverRoot, "driver-root", "/driver-root", "Root of the NVIDIA driver as this process sees it.")
	fs.StringVar(&c.DevRoot, "dev-root", "",
		"Directory whose dev/ holds the GPUs' device nodes. Empty: the driver root, or / for a driver root without "+
			"device nodes.")
	fs.StringVar(&c.ShmSize, "mps-shm-size", "50%",
		"Most memory of the /dev/shm of all clients of one device, as 64Mi or a part of the node's. Used with "+
			"drivers before 580.")
	fs.StringVar(&c.BootIDFile, "boot-id-file", "/proc/sys/kernel/random/boot_id",
		"File with the ID of the node's boot.")
	fs.BoolVar(&c.Version, "version", false, "Print the version and exit.")
	return fs
}

// Parse reads the command line and the environment, where an empty value means the default; see envflags.Parse.
func Parse(args, environ []string) (Config, error) {
	given := slices.DeleteFunc(slices.Clone(environ), func(kv string) bool { return strings.HasSuffix(kv, "=") })
	return envflags.Parse(New, (*Config).complete, args, given)
}

func (c *Config) complete() (err error) {
	if !filepath.IsAbs(c.MPSDir) || !filepath.IsAbs(c.DriverRoot) {
		return fmt.Errorf("--mps-dir %q and --driver-root %q must be absolute paths", c.MPSDir, c.DriverRoot)
	}
	if c.Shm, err = size(c.ShmSize); err != nil {
		return fmt.Errorf("--mps-shm-size: %w", err)
	}
	return nil
}

// size converts a size such as 64Mi, 1Gi, 65536Ki or 50% for tmpfs.
func size(s string) (string, error) {
	if digits, ok := strings.CutSuffix(s, "%"); ok {
		if n, err := strconv.ParseUint(digits, 10, 7); err == nil && n > 0 && n < 100 {
			return s, nil
		}
	}
	for suffix, shift := range map[string]uint{"Ki": 10, "Mi": 20, "Gi": 30} {
		digits, ok := strings.CutSuffix(s, suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 24)
		if err == nil && n > 0 && n<<shift >= 1<<20 {
			return strconv.FormatUint(n<<shift, 10), nil
		}
	}
	return "", fmt.Errorf("%q is neither a size of at least 1Mi (such as 64Mi or 1Gi) nor a part of the node's "+
		"memory (such as 50%%)", s)
}
