// The calls of Arm's core driver that a deployed folder makes or answers, for a driver of the tests: Arm's own sources are
// not to be had from a package.  Names and parameters are those of its public header.
#ifndef ETHOSU_DRIVER_H
#define ETHOSU_DRIVER_H

#include <stddef.h>
#include <stdint.h>

struct ethosu_driver {
  volatile uint32_t *registers;
  void *semaphore;
  uint32_t status;
  uint32_t more[29]; // Arm's own driver, a binary of which is linked as well, has 72 bytes
};

int ethosu_init(struct ethosu_driver *driver, void *base, const void *fast, size_t fast_size, uint32_t secure,
    uint32_t privileged);
void ethosu_deinit(struct ethosu_driver *driver);
void ethosu_irq_handler(struct ethosu_driver *driver);
struct ethosu_driver *ethosu_reserve_driver(void);
int ethosu_invoke_v3(struct ethosu_driver *driver, const void *commands, int size, uint64_t *bases, const size_t *sizes,
    int count, void *argument);

void *ethosu_mutex_create(void);
void ethosu_mutex_destroy(void *mutex);
int ethosu_mutex_lock(void *mutex);
int ethosu_mutex_unlock(void *mutex);
void *ethosu_semaphore_create(void);
void ethosu_semaphore_destroy(void *semaphore);
int ethosu_semaphore_take(void *semaphore, uint64_t timeout);
int ethosu_semaphore_give(void *semaphore);
void ethosu_inference_begin(struct ethosu_driver *driver, void *argument);
void ethosu_inference_end(struct ethosu_driver *driver, void *argument);
#if defined(MICRONPU_ETHOSU_CACHE_BY_ADDRESS)
void ethosu_flush_dcache(uint32_t *begin, size_t bytes);
void ethosu_invalidate_dcache(uint32_t *begin, size_t bytes);
#else
void ethosu_flush_dcache(const uint64_t *begin, const size_t *bytes, int count);
void ethosu_invalidate_dcache(const uint64_t *begin, const size_t *bytes, int count);
#endif
uint64_t ethosu_address_remap(uint64_t address, int index);

#endif
