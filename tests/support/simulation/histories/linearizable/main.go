// Checks that each partition is linearizable as a list to which is appended, with porcupine.
//
// Reads JSON from stdin: by partition, operations with the times of their call and return, and for
// an append the place of its records in the list, for a read the list's length. Prints a line for
// each partition: its name, and "Ok", "Illegal" or "Unknown" (no verdict in time).
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Process int   `json:"process"`
	Call    int64 `json:"call"`
	Return  int64 `json:"return"`
	// Of an append: how long the list was before it. Of a read: -1.
	At int `json:"at"`
	// Of an append: how many records it has. Of a read: how long the list was.
	Length int `json:"length"`
}

// The list's length is its whole state: which records it has is known from the end.
var list = porcupine.Model{
	Init: func() any { return 0 },
	Step: func(state, input, output any) (bool, any) {
		length, op := state.(int), input.(operation)
		if op.At < 0 {
			return op.Length == length, length
		}
		return op.At == length, length + op.Length
	},
}

func main() {
	var partitions map[string][]operation
	if err := json.NewDecoder(os.Stdin).Decode(&partitions); err != nil {
		fmt.Fprintln(os.Stderr, "not what was expected on stdin:", err)
		os.Exit(2)
	}
	names := make([]string, 0, len(partitions))
	for name := range partitions {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		history := make([]porcupine.Operation, 0, len(partitions[name]))
		for _, op := range partitions[name] {
			history = append(history, porcupine.Operation{
				ClientId: op.Process, Input: op, Call: op.Call, Return: op.Return,
			})
		}
		fmt.Println(name, porcupine.CheckOperationsTimeout(list, history, 2*time.Minute))
	}
}
