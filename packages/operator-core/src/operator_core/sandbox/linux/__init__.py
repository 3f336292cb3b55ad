"""What the kernel offers, without any backend: namespaces, control groups, system call filters, safe paths."""
