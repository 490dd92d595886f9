// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts tries the driver on simulated hosts that lack a part: device nodes, a module, a root file system. Each kind
// of device works on each host, or the driver says in one sentence what to do. The test writes the table in
// docs/compatibility.md.
package hosts
