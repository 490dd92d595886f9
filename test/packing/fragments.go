// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"

	"gpu-dra-driver/pkg/gpu"
)

// wholeGPU is the size of a GPU, in thousandths of it. A memory slice of an H100 has 125.
const wholeGPU = 1000

// milli is the size of a request, in thousandths of a GPU.
func milli(profile string) int {
	if share := shareSize(profile); share > 0 {
		return share
	}
	return slicesOf[profile] * wholeGPU / slicesOf[""]
}

// occupancy holds the used part of each of a node's GPUs, in thousandths.
type occupancy []int

// add counts a device in, or out with sign -1. A device with shares has the request as its profile.
func (o occupancy) add(d gpu.Device, sign int) {
	first := position(d.PCIAddress)
	for i := range max(d.Size, 1) {
		size := wholeGPU
		if d.Kind != gpu.KindGroup {
			size = milli(d.Profile)
		}
		o[first+i] += sign * size
	}
}

// free is the number of wholly free GPUs: the largest free group of a node on which each GPU has links to each.
func (o occupancy) free() (n int) {
	for _, used := range o {
		if used == 0 {
			n++
		}
	}
	return n
}

// blocked is the number of GPUs that no pod can have whole, although they are not wholly used.
func (o occupancy) blocked() (n int) {
	for _, used := range o {
		if used > 0 && used < wholeGPU {
			n++
		}
	}
	return n
}

// sum is the used part of the node, in thousandths of a GPU.
func (o occupancy) sum() int { return sum(o) }

// position is the index of a GPU, from its address.
func position(address string) int {
	bus, _ := strconv.ParseInt(address[len("0000:"):len("0000:10")], 16, 0) // Addresses are from the models.
	return int(bus) - firstBus
}

// firstBus is the bus of the first GPU.
const firstBus = 0x10

func address(i int) string { return fmt.Sprintf("0000:%02x:00.0", firstBus+i) }

// fragments are measures over time of how many whole GPUs are left. The zero value has measured nothing.
type fragments struct {
	time, largest, blocked float64
	least                  int
}

// account adds a time in which the largest free group and the share of blocked GPUs, 0 to 1, had these values.
func (f *fragments) account(time float64, largest int, blocked float64) {
	if time <= 0 {
		return
	}
	if f.time == 0 || largest < f.least {
		f.least = largest
	}
	f.time += time
	f.largest += time * float64(largest)
	f.blocked += time * blocked
}

// merge adds another trace's time.
func (f *fragments) merge(other fragments) {
	if f.time == 0 || other.time > 0 && other.least < f.least {
		f.least = other.least
	}
	f.time += other.time
	f.largest += other.largest
	f.blocked += other.blocked
}

// String returns the columns of a table: the largest free group as mean and minimum, and the blocked GPUs.
func (f fragments) String() string {
	return fmt.Sprintf("%.2f (%d)\t%.1f %%", f.largest/f.time, f.least, 100*f.blocked/f.time)
}
