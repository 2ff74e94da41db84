#include "machine.h"
void team_end(simulation *s) { (void)s; }
