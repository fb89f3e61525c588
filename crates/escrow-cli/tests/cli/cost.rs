//! What operations cost, counted in system calls.
