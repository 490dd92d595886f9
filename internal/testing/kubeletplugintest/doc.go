// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeletplugintest is the environment of the plugin's tests: an API server, metrics and, on demand, a
// simulated machine with a plugin and its kubelet.
//
// It does not import the packages under test, so that their own tests can use it; Start takes the plugin as an
// argument.
package kubeletplugintest
