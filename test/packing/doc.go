// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command packing measures how well partitions pack, and how much of a node or cluster stays whole beside them. It replays seeded traces of arrivals and departures through the
// scheduler's own allocator over the driver's slices. It compares the published order with others, prints a table and
// draws a plot.
//
// The scheduler takes the first device that fits, so the order of the devices is the only policy. The driver's order
// is compared with four others. One has the whole GPUs in a slice of their own and from the other end. One has GPUs by
// index with placements by start. One is random, and one is the best fixed order of placements. The best one comes from trying all
// orders on the same trace in a model of first-fit, which is checked against the allocator. In small cases the upper
// bound is the optimum of an allocator that knows the future and may refuse requests.
//
// A cluster of 32 nodes is compared under two policies: all nodes offer partitions and shares, or few nodes, by the rule
// of type offering. Its traces have the mixes of the other tables, and the shape of Alibaba's openb trace. Two measures
// show how whole the cluster is. The largest free group is the largest number of wholly free GPUs on a node, whose GPUs
// all have links to each other. A GPU is blocked if it is in use but not wholly used, because no pod can have it whole.
//
// The last table is of `kubectl gpu pack`: at some moments of the traces it plans a group of four GPUs, and `--defragment`.
package main
