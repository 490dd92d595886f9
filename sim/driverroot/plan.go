// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"fmt"
	"path"

	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/smi"
)

// mpsProgram is another name of the nvidia-smi replacement: see sim/mps.
const mpsProgram = "nvidia-cuda-mps-control"

// ModprobeProgram is another one: it loads the module nvidia_uvm and makes the device nodes.
const ModprobeProgram = "nvidia-modprobe"

// sonames lists the driver's libraries that clients load, each with its SONAME's number.
var sonames = []struct{ name, number string }{
	{"libcuda", "1"}, {"libcudadebugger", "1"}, {"libnvcuvid", "1"}, {"libnvidia-allocator", "1"}, {"libnvidia-cfg", "1"},
	{"libnvidia-encode", "1"}, {"libnvidia-nvvm", "4"}, {"libnvidia-opencl", "1"}, {"libnvidia-opticalflow", "1"},
	{"libnvidia-ptxjitcompiler", "1"},
}

func libraries(s *engine.State) []Entry {
	version := s.Profile.Driver.Version
	nvmlFile := "libnvidia-ml.so." + version
	entries := []Entry{
		{Path: path.Join(LibDir, nvmlFile), Kind: Installed, Mode: 0o755},
		{Path: path.Join(LibDir, "libnvidia-ml.so.1"), Kind: Symlink, Target: nvmlFile},
		{Path: path.Join(BinDir, "nvidia-smi"), Kind: Installed, Mode: 0o755},
		{Path: path.Join(BinDir, mpsProgram), Kind: Installed, Mode: 0o755},
		{Path: path.Join(BinDir, ModprobeProgram), Kind: Installed, Mode: 0o755},
		// Mount points for a process that is chrooted here.
		{Path: "tmp", Kind: Dir}, {Path: "dev/shm", Kind: Dir},
	}
	for _, lib := range sonames {
		soname := lib.name + ".so." + lib.number
		entries = append(entries,
			Entry{Path: path.Join(LibDir, lib.name+".so."+version), Kind: File, Mode: 0o755, Content: placeholderLibrary(soname)},
			Entry{Path: path.Join(LibDir, soname), Kind: Symlink, Target: lib.name + ".so." + version})
	}
	entries = append(entries, Entry{Path: path.Join(LibDir, "libcuda.so"), Kind: Symlink, Target: "libcuda.so.1"})
	for _, program := range []string{"nvidia-debugdump", "nvidia-persistenced"} {
		entries = append(entries, Entry{Path: path.Join(BinDir, program), Kind: File, Mode: 0o755,
			Content: []byte("#!/bin/sh\necho \"" + program + ": placeholder of the GPU simulator\"\n")})
	}
	return entries
}

// firmware files carry the boards' facts into containers: see sim/smi.
func firmware(s *engine.State) ([]Entry, error) {
	content, err := smi.Static(s).Firmware()
	if err != nil {
		return nil, err
	}
	parts, err := smi.Partitions(s).Firmware()
	if err != nil {
		return nil, err
	}
	dir := firmwareDir(s)
	return []Entry{
		file(path.Join(dir, "gsp_ga10x.bin"), string(content)), file(path.Join(dir, "gsp_tu10x.bin"), string(content)),
		file(path.Join(dir, smi.PartitionsFile), string(parts)),
	}, nil
}

func firmwareDir(s *engine.State) string {
	return path.Join("lib/firmware/nvidia", s.Profile.Driver.Version)
}

// devices stay when the driver is unloaded, like nodes made by nvidia-modprobe, and vanish with their GPU.
func devices(s *engine.State) []Entry {
	entries := []Entry{{Path: KernelLog, Kind: Log, Mode: 0o644}}
	if s.NodesMissing {
		return entries
	}
	entries = append(entries,
		node("dev/nvidiactl", majorGPU, minorControl), node("dev/nvidia-modeset", majorGPU, minorModeset),
		node("dev/nvidia-uvm", majorUVM, 0), node("dev/nvidia-uvm-tools", majorUVM, 1),
	)
	for n := range s.Profile.Board.Switches {
		entries = append(entries, node(fmt.Sprintf("dev/nvidia-nvswitch%d", n), majorSwitch, uint32(n)))
	}
	if s.Profile.Board.Switches > 0 {
		entries = append(entries, node("dev/nvidia-nvswitchctl", majorSwitch, minorControl))
	}
	for _, i := range s.OnBus() {
		if g := s.GPUs[i]; !g.NodeMissing {
			entries = append(entries, node(fmt.Sprintf("dev/nvidia%d", g.Minor), majorGPU, uint32(g.Minor)))
		}
	}
	return entries
}
