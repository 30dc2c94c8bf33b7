// A driver of one Ethos-U55 on its registers, for the tests: it begins where Arm's own would, and asks its surroundings
// the same questions.
#include "ethosu_driver.h"

enum { STATUS = 1, CMD = 2, RESET = 3, QBASE = 4, QSIZE = 8, BASEP = 32 };

static struct ethosu_driver *started;
static void *mutex;

int ethosu_init(struct ethosu_driver *driver, void *base, const void *fast, size_t fast_size, uint32_t secure,
    uint32_t privileged) {
  (void)fast;
  (void)fast_size;
  (void)secure;
  (void)privileged;
  if (mutex == NULL && (mutex = ethosu_mutex_create()) == NULL) {
    return -1;
  }
  driver->registers = (volatile uint32_t *)base;
  driver->semaphore = ethosu_semaphore_create();
  driver->registers[RESET] = 0;
  started = driver;
  return driver->semaphore != NULL ? 0 : -1;
}

void ethosu_deinit(struct ethosu_driver *driver) {
  ethosu_semaphore_destroy(driver->semaphore);
  started = NULL;
}

struct ethosu_driver *ethosu_reserve_driver(void) {
  return started;
}

void ethosu_irq_handler(struct ethosu_driver *driver) {
  driver->status = driver->registers[STATUS];
  driver->registers[CMD] = 2;
  (void)ethosu_semaphore_give(driver->semaphore);
}

int ethosu_invoke_v3(struct ethosu_driver *driver, const void *commands, int size, uint64_t *bases, const size_t *sizes,
    int count, void *argument) {
  if (ethosu_mutex_lock(mutex) != 0) {
    return -1;
  }
  ethosu_flush_dcache(bases, sizes, count);
  driver->registers[RESET] = 0;
  driver->registers[QBASE] = (uint32_t)(uintptr_t)commands;
  driver->registers[QSIZE] = (uint32_t)size;
  for (int i = 0; i < count; ++i) {
    driver->registers[BASEP + 2 * i] = (uint32_t)bases[i];
  }
  ethosu_inference_begin(driver, argument);
  driver->registers[CMD] = 1;
  const int taken = ethosu_semaphore_take(driver->semaphore, UINT64_MAX);
  ethosu_inference_end(driver, argument);
  ethosu_invalidate_dcache(bases, sizes, count);
  (void)ethosu_mutex_unlock(mutex);
  return taken == 0 && (driver->status & 0x20u) != 0u && (driver->status & 0x14u) == 0u ? 0 : -1;
}
