// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package layouttest

import "gpu-dra-driver/pkg/gpu"

const mib = 1 << 20

// profile takes the engines in the order multiprocessors, copy engines, decoders, encoders, JPEG and OFA engines.
func profile(
	id int, name string, slices, instances int, memoryMiB uint64, engines [6]int, size int, starts ...int,
) gpu.Profile {
	p := gpu.Profile{
		ID:              id,
		Name:            name,
		Slices:          slices,
		Instances:       instances,
		MemoryBytes:     memoryMiB * mib,
		Multiprocessors: engines[0],
		CopyEngines:     engines[1],
		Decoders:        engines[2],
		Encoders:        engines[3],
		JPEGEngines:     engines[4],
		OFAEngines:      engines[5],
	}
	for _, s := range starts {
		p.Placements = append(p.Placements, gpu.Placement{Start: s, Size: size})
	}
	return p
}

// H100 is an H100 with 80 GB.
func H100() gpu.MIG {
	return gpu.MIG{Capable: true, Switchable: true, Profiles: []gpu.Profile{
		profile(19, "1g.10gb", 1, 7, 9984, [6]int{16, 1, 1, 0, 1, 0}, 1, 0, 1, 2, 3, 4, 5, 6),
		profile(20, "1g.10gb+me", 1, 1, 9984, [6]int{16, 1, 1, 0, 1, 1}, 1, 0, 1, 2, 3, 4, 5, 6),
		profile(15, "1g.20gb", 1, 4, 20096, [6]int{26, 1, 1, 0, 1, 0}, 2, 0, 2, 4, 6),
		profile(14, "2g.20gb", 2, 3, 20096, [6]int{32, 2, 2, 0, 2, 0}, 2, 0, 2, 4),
		profile(9, "3g.40gb", 3, 2, 40448, [6]int{60, 3, 3, 0, 3, 0}, 4, 0, 4),
		profile(5, "4g.40gb", 4, 1, 40448, [6]int{64, 4, 4, 0, 4, 0}, 4, 0),
		profile(0, "7g.80gb", 7, 1, 81152, [6]int{132, 8, 7, 0, 7, 1}, 8, 0),
	}}
}

// A100 is an A100 with 40 GB. A switch of its MIG mode needs a reset.
func A100() gpu.MIG {
	return gpu.MIG{Capable: true, Profiles: []gpu.Profile{
		profile(19, "1g.5gb", 1, 7, 4864, [6]int{14, 1, 0, 0, 0, 0}, 1, 0, 1, 2, 3, 4, 5, 6),
		profile(20, "1g.5gb+me", 1, 1, 4864, [6]int{14, 1, 1, 0, 1, 1}, 1, 0, 1, 2, 3, 4, 5, 6),
		profile(15, "1g.10gb", 1, 4, 9984, [6]int{14, 1, 1, 0, 0, 0}, 2, 0, 2, 4, 6),
		profile(14, "2g.10gb", 2, 3, 9984, [6]int{28, 2, 1, 0, 0, 0}, 2, 0, 2, 4),
		profile(9, "3g.20gb", 3, 2, 20096, [6]int{42, 3, 2, 0, 0, 0}, 4, 0, 4),
		profile(5, "4g.20gb", 4, 1, 20096, [6]int{56, 4, 2, 0, 0, 0}, 4, 0),
		profile(0, "7g.40gb", 7, 1, 40320, [6]int{98, 7, 5, 0, 1, 1}, 8, 0),
	}}
}

// A30 is an A30 with four memory slices.
func A30() gpu.MIG {
	return gpu.MIG{Capable: true, Profiles: []gpu.Profile{
		profile(14, "1g.6gb", 1, 4, 5952, [6]int{14, 1, 0, 0, 0, 0}, 1, 0, 1, 2, 3),
		profile(5, "2g.12gb", 2, 2, 11968, [6]int{28, 2, 2, 0, 0, 0}, 2, 0, 2),
		profile(0, "4g.24gb", 4, 1, 24000, [6]int{56, 4, 4, 0, 1, 1}, 4, 0),
	}}
}

// RTXPRO6000 is a board with twelve memory slices. Its profiles have all, some or none of the media engines.
func RTXPRO6000() gpu.MIG {
	return gpu.MIG{Capable: true, Switchable: true, Profiles: []gpu.Profile{
		profile(14, "1g.24gb", 1, 4, 24192, [6]int{46, 1, 1, 1, 1, 0}, 3, 0, 3, 6, 9),
		profile(21, "1g.24gb+me", 1, 1, 24192, [6]int{46, 1, 1, 1, 1, 1}, 3, 0, 3, 6, 9),
		profile(47, "1g.24gb+gfx", 1, 4, 24192, [6]int{46, 1, 1, 1, 1, 0}, 3, 0, 3, 6, 9),
		profile(65, "1g.24gb+me.all", 1, 1, 24192, [6]int{46, 1, 4, 4, 4, 1}, 3, 0, 3, 6, 9),
		profile(67, "1g.24gb-me", 1, 4, 24192, [6]int{46, 1, 0, 0, 0, 0}, 3, 0, 3, 6, 9),
		profile(5, "2g.48gb", 2, 2, 48512, [6]int{94, 2, 2, 2, 2, 0}, 6, 0, 6),
		profile(64, "2g.48gb+me.all", 2, 1, 48512, [6]int{94, 2, 4, 4, 4, 1}, 6, 0, 6),
		profile(66, "2g.48gb-me", 2, 2, 48512, [6]int{94, 2, 0, 0, 0, 0}, 6, 0, 6),
		profile(35, "2g.48gb+gfx", 2, 2, 48512, [6]int{94, 2, 2, 2, 2, 0}, 6, 0, 6),
		profile(0, "4g.96gb", 4, 1, 97280, [6]int{188, 4, 4, 4, 4, 1}, 12, 0),
		profile(32, "4g.96gb+gfx", 4, 1, 97280, [6]int{188, 4, 4, 4, 4, 1}, 12, 0),
	}}
}
