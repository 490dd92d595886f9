// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"io"
	"strconv"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// clientConfig reaches the API server with the pod's service account, or as a kubeconfig file says.
func clientConfig(kubeconfig string) (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w; outside of a pod, give --kubeconfig", err)
	}
	// The API server shares itself out fairly; a limit here would only make a large cluster slow.
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.UserAgent = "dra-controller/" + version
	return config, nil
}

// startLogging sends klog, which every library here logs through, to one stream.
func startLogging(verbosity int, out io.Writer) {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{"v": strconv.Itoa(verbosity), "logtostderr": "false", "alsologtostderr": "false", "stderrthreshold": "FATAL", "one_output": "true"} {
		_ = flags.Set(name, value) // Known flags with valid values.
	}
	klog.SetOutput(out)
}
