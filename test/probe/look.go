// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// smiTimeout limits nvidia-smi, which can hang on a broken driver.
const smiTimeout = 20 * time.Second

// view is a container's view of its GPUs. Every list is sorted, and empty rather than null.
type view struct {
	Devices []device          `json:"devices"`
	Env     map[string]string `json:"env"`    // NVIDIA_*, CUDA_*, NCCL_* and ranks
	Mounts  []string          `json:"mounts"` // mount points of driver files
	UID     int               `json:"uid"`
	// NvidiaSMI is the output of `nvidia-smi -L`; NvidiaSMIError the error of running it. Both are empty without
	// nvidia-smi.
	NvidiaSMI      string `json:"nvidiaSMI,omitempty"`
	NvidiaSMIError string `json:"nvidiaSMIError,omitempty"`
	// NCCLTopology is the content of the file in NCCL_TOPO_FILE.
	NCCLTopology string `json:"ncclTopology,omitempty"`
	// Metadata has the files about the container's devices, by path below metadataDir.
	Metadata map[string]string `json:"metadata,omitempty"`
}

// metadataDir is where Kubernetes defines the files.
const metadataDir = "var/run/kubernetes.io/dra-device-attributes"

func look(ctx context.Context, root string, environ []string) view {
	v := view{
		Devices: devices(root),
		Env:     driverEnv(environ),
		Mounts:  []string{},
		UID:     os.Getuid(),
	}
	if info, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo")); err == nil {
		v.Mounts = driverMounts(info)
		if v.Env["CUDA_MPS_PIPE_DIRECTORY"] == "" {
			v.Mounts = slices.DeleteFunc(v.Mounts, func(m string) bool { return m == "/dev/shm" })
		}
	}
	v.NvidiaSMI, v.NvidiaSMIError = nvidiaSMI(ctx, root)
	if file := v.Env["NCCL_TOPO_FILE"]; file != "" {
		data, err := os.ReadFile(filepath.Join(root, file))
		v.NCCLTopology = string(data)
		if err != nil {
			v.NCCLTopology = err.Error()
		}
	}
	v.Metadata = metadataFiles(root)
	return v
}

// metadataFiles has an error as the content of a file that cannot be read.
func metadataFiles(root string) map[string]string {
	out := map[string]string{}
	dir := filepath.Join(root, metadataDir)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path) // The path begins with dir.
		data, err := os.ReadFile(path)
		out[name] = string(data)
		if err != nil {
			out[name] = err.Error()
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		out[""] = err.Error()
	}
	return out
}

// driverVariable matches variables of GPU programs, and those in which Jobs, JobSets, LeaderWorkerSets and the operators of PyTorch,
// MPI and Ray give a pod its rank or its command.
var driverVariable = regexp.MustCompile(
	`^(NVIDIA_|CUDA_|NCCL_|LWS_|PET_|OMPI_|(JOB_COMPLETION_INDEX|NODE_RANK|RANK|WORLD_SIZE|MASTER_ADDR|KUBERAY_GEN_RAY_START_CMD)$)`)

func driverEnv(environ []string) map[string]string {
	env := map[string]string{}
	for _, kv := range environ {
		key, value, _ := strings.Cut(kv, "=")
		if driverVariable.MatchString(key) {
			env[key] = value
		}
	}
	return env
}

// driverMounts selects the mount points of a GPU driver from /proc/self/mountinfo (proc(5): the fifth field; its
// octal escapes do not occur in driver files).
func driverMounts(mountinfo []byte) []string {
	points := []string{}
	lines := bufio.NewScanner(bytes.NewReader(mountinfo))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		point := fields[4]
		if strings.Contains(point, metadataDir[len("var/run"):]) {
			continue
		}
		// MPS mounts a shared memory of its own.
		if lower := strings.ToLower(point); strings.Contains(lower, "nvidia") || strings.Contains(lower, "libcuda") || point == "/dev/shm" {
			points = append(points, point)
		}
	}
	slices.Sort(points)
	return slices.Compact(points)
}

func nvidiaSMI(ctx context.Context, root string) (output, problem string) {
	for _, dir := range []string{"usr/bin", "bin", "usr/local/bin"} {
		file := filepath.Join(root, dir, "nvidia-smi")
		if _, err := os.Stat(file); err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, smiTimeout)
		defer cancel()
		out, err := exec.CommandContext(ctx, file, "-L").CombinedOutput()
		output = strings.TrimSpace(string(out))
		if err != nil {
			problem = err.Error()
		}
		return output, problem
	}
	return "", ""
}
