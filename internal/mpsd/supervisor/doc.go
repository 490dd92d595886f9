// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package supervisor runs MPS control daemons: at most one for a device, on demand, restarted when it dies, ended on
// request.
//
// Each daemon lives in a mount namespace of its own, at the root of the driver, with the device's own /dev/shm and pipe
// directory. Nothing is looked up in Kubernetes, and no token is held: the desired daemons arrive over a socket and are kept in
// a file for each, so that a supervisor which starts anew brings them back by itself.
//
// Traps. A daemon's clients lose what they computed when it ends, so nothing that goes on does so because of the
// plugin's comings and goings. A hanging daemon must not hold up another: each has its own goroutine, and each question to
// one has an end.
package supervisor
