"""The web page: plain files for a browser, the same in the service and in an exported file.

No build step: what is here is what runs. `index.html` is the frame and `app.js` its beginning; read
on in the order of its imports.
"""
