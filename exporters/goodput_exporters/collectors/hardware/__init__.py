"""Health of the machine: memory errors, temperatures, throttled processors, NVMe controllers."""
