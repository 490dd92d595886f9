// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command probe prints, as one line of JSON, a container's view of its GPUs: device nodes, environment, mounted
// driver files, its user and the output of nvidia-smi. Demos and end-to-end tests run it, because only the inside of
// a container shows whether a claim took effect.
//
//	probe look          print and exit
//	probe look --hold   print, then wait for SIGTERM
//	probe cuda          act as a program of CUDA on a simulated GPU too: connect to MPS, allocate, compute, print what came of it
//	probe sleep         wait for SIGTERM
//
// It is static, needs no privilege and writes no file. It exits with 0 on SIGTERM, so that a deleted pod counts as
// succeeded.
package main
