// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command probe prints, as one line of JSON, what a container sees of its GPUs:
// device nodes, environment, mounted driver files, its user and what nvidia-smi
// says. Demos and end-to-end tests run it, because only the inside of a
// container shows whether a claim was honoured.
//
//	probe look          print and exit
//	probe look --hold   print, then wait for SIGTERM
//	probe cuda          act as a program of CUDA on a simulated GPU too: connect to MPS, allocate, print what came of it
//	probe sleep         wait for SIGTERM
//
// It is static, needs no privilege and writes nothing. It exits with 0 on
// SIGTERM, so that a pod that is deleted counts as having ended well.
package main
