// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package setup gives the commands that use the API server their way to it, and their log.
package setup

import (
	"flag"
	"io"
	"strconv"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// ClientConfig reaches the API server with the pod's service account, or as a kubeconfig file says. It does not connect.
func ClientConfig(kubeconfig, userAgent string) (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	// The API server shares itself out fairly. A claim is looked up for each Prepare, and client-go's own limit of 5 a
	// second would hold pods up; in the controller it would make a large cluster slow.
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.UserAgent = userAgent
	return config, nil
}

// StartLogging sends klog, which every library here logs through, to one stream.
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
