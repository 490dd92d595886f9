// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package web serves a page with the GPUs of a cluster to the browser of the user who started it.
//
// Anything on the user's machine can connect to the port, and any web site can send the browser there. So each request
// needs the random token of the URL, the name of the loopback interface as host, and the page's own origin. The page
// comes from the binary and loads nothing else. It cannot change anything in the cluster.
package web
