// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"io"
	"strconv"

	"k8s.io/klog/v2"
)

// startLogging sends klog, which every library here logs through, to one stream.
func startLogging(verbosity int, out io.Writer) {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{"v": strconv.Itoa(verbosity), "logtostderr": "false", "alsologtostderr": "false", "stderrthreshold": "FATAL", "one_output": "true"} {
		_ = flags.Set(name, value) // Known flags with valid values.
	}
	klog.SetOutput(out)
}
