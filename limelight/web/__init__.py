"""The web page: plain files for a browser, the same in the service and in an exported file.

There is no build step: `index.html` loads `js/main.js`, which starts `js/app.js`. The folders of js
are read in this order, and a module imports only from its own folder and those before it:

    core/       elements, numbers, the selection, the service, the trace
    charts/     matrices, vectors, bars, curves, diagrams, formulas
    attention/  heads and their weights
    stages/     the pictures of Explain, stage by stage
    tabs/       one module per tab, and what only a tab uses
"""
