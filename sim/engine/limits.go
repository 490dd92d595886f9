// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/procfs"
)

// MemoryLimits is the first CUDA version whose driver limits the memory of a cgroup:
// https://github.com/NVIDIA/go-nvml/blob/v0.13.4-0/gen/nvml/nvml.h
const MemoryLimits = 13040

// MemoryLimit is the limit of a cgroup's processes on a GPU, in bytes.
type MemoryLimit struct {
	// Cgroup identifies the cgroup as the kernel does, by its directory's device and inode.
	Cgroup string `json:"cgroup"`
	Soft   uint64 `json:"soft"`
	Hard   uint64 `json:"hard"`
}

// MemoryLimit returns the limit of a cgroup and the memory that its processes have, in bytes.
func (s *State) MemoryLimit(g *GPU, cgroup string) (limit MemoryLimit, used uint64, code nvml.Code) {
	if s.Profile.Driver.CUDA < MemoryLimits {
		return MemoryLimit{}, 0, nvml.NotSupported
	}
	i := slices.IndexFunc(g.Limits, func(l MemoryLimit) bool { return l.Cgroup == cgroup })
	if i < 0 {
		return MemoryLimit{}, 0, nvml.NotFound
	}
	return g.Limits[i], g.usedBy(cgroup), 0
}

// SetMemoryLimit sets the limit of a cgroup. A soft limit of 0 with the largest hard one removes it.
func (s *State) SetMemoryLimit(g *GPU, l MemoryLimit) nvml.Code {
	total := s.Profile.Board.MemoryMiB << 20
	none := l.Soft == 0 && l.Hard == math.MaxUint64
	switch {
	case s.Profile.Driver.CUDA < MemoryLimits:
		return nvml.NotSupported
	case !none && (l.Soft > l.Hard || l.Hard > total):
		return nvml.InvalidArgument
	}
	g.Limits = slices.DeleteFunc(slices.Clone(g.Limits), func(o MemoryLimit) bool { return o.Cgroup == l.Cgroup })
	if !none {
		g.Limits = append(g.Limits, l)
	}
	return 0
}

// usedBy returns the memory of a cgroup's processes, in bytes.
func (g *GPU) usedBy(cgroup string) (sum uint64) {
	for _, p := range g.Processes {
		if p.Cgroup == cgroup {
			sum += p.MemoryMiB << 20
		}
	}
	return sum
}

// leftMiB returns what the limit of a process's cgroup leaves to it, with no limit the largest number.
func (g *GPU) leftMiB(p Process) uint64 {
	i := slices.IndexFunc(g.Limits, func(l MemoryLimit) bool { return l.Cgroup == p.Cgroup })
	if p.Cgroup == "" || i < 0 {
		return math.MaxUint64
	}
	used := g.usedBy(p.Cgroup)
	for _, o := range g.Processes {
		if o.PID == p.PID && o.Cgroup == p.Cgroup {
			used -= o.MemoryMiB << 20
		}
	}
	if used > g.Limits[i].Hard {
		return 0
	}
	return (g.Limits[i].Hard - used) >> 20
}

// CgroupAt returns the identity of the cgroup with a directory.
func CgroupAt(dir string) (string, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() {
		return "", fmt.Errorf("%s is not a directory of a cgroup", dir)
	}
	return fmt.Sprintf("%d:%d", stat.Dev, stat.Ino), nil
}

// CgroupOf returns the identity of a process's cgroup of version 2, or "" if it is in none below the root. proc is a /proc,
// and cgroups the root's directory.
func CgroupOf(proc, cgroups string, pid uint32) string {
	path, err := procfs.Cgroup(proc, pid)
	if err != nil || path == "" || path == "/" {
		return ""
	}
	id, _ := CgroupAt(filepath.Join(cgroups, path))
	return id
}
