// Entry of the page that the service delivers; an exported file starts at file.js.

import { start } from "./app.js";

start();
