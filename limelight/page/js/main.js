// The page of the service begins here; an exported file begins with its own data instead.

import { start } from "./app.js";

start();
