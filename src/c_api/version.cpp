#include "rootdk/version.h"
