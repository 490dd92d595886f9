// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/cluster/why"
)

// BenchmarkAsk explains a claim for eight GPUs in a large cluster.
func BenchmarkAsk(b *testing.B) {
	c, err := whytest.Large(5000)
	if err != nil {
		b.Fatal(err)
	}
	before := processorTime(b)
	for b.Loop() {
		answer := why.Ask(context.Background(), c, why.Subject{Claim: claim("asked", gpus, 8)}, why.Options{Driver: slicetest.Driver, Limit: time.Minute})
		if answer.Result != why.Waits || len(answer.Cures) == 0 {
			b.Fatal(answer)
		}
	}
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/1e6, "cpu-ms/op")
}

// processorTime returns the processor time of the process, because other programs make the time of a clock long.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
