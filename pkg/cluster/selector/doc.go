// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package selector reads the requests of claims. It analyses the CEL expression of a device selector without a device:
// the required driver, the named attributes and capacities, and the compared values. It finds the class that serves an
// extended resource of a pod, as the scheduler does.
//
// The analysis covers the common forms of selectors. It ignores the rest, such as aliases by cel.bind: a Reading can be
// incomplete but not wrong.
package selector
