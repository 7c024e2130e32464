"""What Python does to a process: calls, memory, forks, interrupts."""
