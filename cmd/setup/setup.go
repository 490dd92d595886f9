// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package setup configures the API client and the log of the commands.
package setup

import (
	"flag"
	"io"
	"strconv"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// ClientConfig returns the configuration of the pod's service account, or of a kubeconfig file. It does not connect.
func ClientConfig(kubeconfig, userAgent string) (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	// The API server has its own fair queueing. Each Prepare reads a claim, and client-go's limit of 5 requests a
	// second would delay pods. It would also slow the controller of a large cluster.
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.UserAgent = userAgent
	return config, nil
}

// StartLogging writes the logs of all libraries, which use klog, to one stream.
func StartLogging(verbosity int, out io.Writer) {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{
		"v": strconv.Itoa(verbosity), "logtostderr": "false", "alsologtostderr": "false", "stderrthreshold": "FATAL",
		"one_output": "true",
	} {
		_ = flags.Set(name, value) // Known flags with valid values.
	}
	klog.SetOutput(out)
}
